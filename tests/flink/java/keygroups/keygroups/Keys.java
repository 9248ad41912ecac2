package keygroups;

import java.util.Arrays;
import java.util.Objects;
import org.apache.commons.lang3.builder.HashCodeBuilder;

/** Classes of keys, each with its {@code hashCode} as the tool that its name says writes it. */
public final class Keys {
    private Keys() {}

    /** What most of them hold. */
    public abstract static class Base {
        public String region;
        public int number;
        public long id;
        public boolean flag;
        public double ratio;
        public float weight;
    }

    /** A JDK record; components are not in the order of their names. */
    public record RecordKey(String region, int number, Boolean flag, long id) {}

    public record WideKey(int g, String c, long a, short f, String b, int e, byte d) {}

    public static final class ObjectsKey extends Base {
        @Override
        public int hashCode() {
            return Objects.hash(region, number);
        }
    }

    public static final class ObjectsAllKey extends Base {
        @Override
        public int hashCode() {
            return Objects.hash(region, number, id, flag, ratio, weight);
        }
    }

    public static final class EclipseKey extends Base {
        @Override
        public int hashCode() {
            final int prime = 31;
            int result = 1;
            result = prime * result + (flag ? 1231 : 1237);
            result = prime * result + (int) (id ^ (id >>> 32));
            result = prime * result + number;
            long temp;
            temp = Double.doubleToLongBits(ratio);
            result = prime * result + (int) (temp ^ (temp >>> 32));
            result = prime * result + ((region == null) ? 0 : region.hashCode());
            result = prime * result + Float.floatToIntBits(weight);
            return result;
        }
    }

    public static final class IntellijKey extends Base {
        @Override
        public int hashCode() {
            int result;
            long temp;
            result = region != null ? region.hashCode() : 0;
            result = 31 * result + number;
            result = 31 * result + (int) (id ^ (id >>> 32));
            result = 31 * result + (flag ? 1 : 0);
            temp = Double.doubleToLongBits(ratio);
            result = 31 * result + (int) (temp ^ (temp >>> 32));
            result = 31 * result + (weight != +0.0f ? Float.floatToIntBits(weight) : 0);
            return result;
        }
    }

    public static final class LombokKey extends Base {
        @Override
        public int hashCode() {
            final int PRIME = 59;
            int result = 1;
            result = result * PRIME + this.number;
            final long $id = this.id;
            result = result * PRIME + (int) ($id >>> 32 ^ $id);
            result = result * PRIME + (this.flag ? 79 : 97);
            final long $ratio = Double.doubleToLongBits(this.ratio);
            result = result * PRIME + (int) ($ratio >>> 32 ^ $ratio);
            result = result * PRIME + Float.floatToIntBits(this.weight);
            final Object $region = this.region;
            result = result * PRIME + ($region == null ? 43 : $region.hashCode());
            return result;
        }
    }

    /** A wrapper counts as an object. */
    public static final class LombokBoxedKey {
        public Boolean sure;
        public boolean flag;
        public String region;
        public int[] parts;

        @Override
        public int hashCode() {
            final int PRIME = 59;
            int result = 1;
            result = result * PRIME + (this.flag ? 79 : 97);
            final Object $sure = this.sure;
            result = result * PRIME + ($sure == null ? 43 : $sure.hashCode());
            final Object $region = this.region;
            result = result * PRIME + ($region == null ? 43 : $region.hashCode());
            result = result * PRIME + Arrays.hashCode(this.parts);
            return result;
        }
    }

    public static final class KotlinKey extends Base {
        @Override
        public int hashCode() {
            int result = this.region == null ? 0 : this.region.hashCode();
            result = result * 31 + Integer.hashCode(this.number);
            result = result * 31 + Boolean.hashCode(this.flag);
            result = result * 31 + Long.hashCode(this.id);
            return result;
        }
    }

    public static final class CommonsKey extends Base {
        @Override
        public int hashCode() {
            return new HashCodeBuilder(17, 37)
                    .append(region).append(number).append(id).append(flag).append(ratio).append(weight)
                    .toHashCode();
        }
    }

    public static final class CommonsOddKey extends Base {
        @Override
        public int hashCode() {
            return new HashCodeBuilder(11, 47).append(number).append(region).toHashCode();
        }
    }

    public static final class AutoValueKey extends Base {
        @Override
        public int hashCode() {
            int h$ = 1;
            h$ *= 1000003;
            h$ ^= (region == null) ? 0 : region.hashCode();
            h$ *= 1000003;
            h$ ^= number;
            h$ *= 1000003;
            h$ ^= (int) ((id >>> 32) ^ id);
            h$ *= 1000003;
            h$ ^= flag ? 1231 : 1237;
            return h$;
        }
    }

    public static final class ImmutablesKey extends Base {
        @Override
        public int hashCode() {
            int h = 5381;
            h += (h << 5) + Objects.hashCode(region);
            h += (h << 5) + number;
            h += (h << 5) + Long.hashCode(id);
            h += (h << 5) + Boolean.hashCode(flag);
            return h;
        }
    }

    public static final class NetbeansKey extends Base {
        @Override
        public int hashCode() {
            int hash = 7;
            hash = 53 * hash + Objects.hashCode(this.region);
            hash = 53 * hash + this.number;
            hash = 53 * hash + (int) (this.id ^ (this.id >>> 32));
            hash = 53 * hash + (this.flag ? 1 : 0);
            return hash;
        }
    }

    public static final class BlochKey extends Base {
        @Override
        public int hashCode() {
            int result = 17;
            result = 31 * result + (region == null ? 0 : region.hashCode());
            result = 31 * result + number;
            return result;
        }
    }

    public static final class OneFieldKey extends Base {
        @Override
        public int hashCode() {
            return region == null ? 0 : region.hashCode();
        }
    }

    public static final class CastKey extends Base {
        @Override
        public int hashCode() {
            return (int) id;
        }
    }

    public static final class SumKey extends Base {
        @Override
        public int hashCode() {
            return Objects.hashCode(region) + number;
        }
    }

    public static final class XorKey extends Base {
        @Override
        public int hashCode() {
            return Objects.hashCode(region) ^ Long.hashCode(id) ^ number;
        }
    }

    public enum Color { RED, GREEN, BLUE }

    public static final class EnumKey {
        public Color color;
        public int number;
        public String region;

        @Override
        public int hashCode() {
            return Objects.hash(color.name(), number, region);
        }
    }

    /** A class inside a class, each with a hash of its own. */
    public static final class OuterKey {
        public RecordKey place;
        public int shard;

        @Override
        public int hashCode() {
            final int PRIME = 59;
            int result = 1;
            result = result * PRIME + this.shard;
            final Object $place = this.place;
            result = result * PRIME + ($place == null ? 43 : $place.hashCode());
            return result;
        }
    }

    /** No tool writes this. */
    public static final class OddKey extends Base {
        @Override
        public int hashCode() {
            return 7919 * number - 31 * (Objects.hashCode(region) >>> 3);
        }
    }
}
