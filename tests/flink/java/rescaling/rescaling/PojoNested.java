package rescaling;

import java.util.Objects;

/** A POJO with another one inside. */
public class PojoNested {
    public Place place;
    public long day;

    public PojoNested() {}

    static PojoNested of(int n) {
        PojoNested made = new PojoNested();
        made.place = n % 10 == 0 ? null : Place.of(n);
        made.day = n * 86_400_000_000L;
        return made;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PojoNested
                && Objects.equals(place, ((PojoNested) other).place)
                && day == ((PojoNested) other).day;
    }

    @Override
    public int hashCode() {
        return Objects.hash(place, day);
    }
}
