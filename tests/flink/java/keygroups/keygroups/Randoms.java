package keygroups;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Random;
import java.util.UUID;

/** Random values, with those at the edges of their types among them. */
final class Randoms {
    private static final long[] EDGES = {0, 1, -1, 42, 1L << 31, -(1L << 31), (1L << 31) - 1, 1L << 32, Long.MAX_VALUE, Long.MIN_VALUE};
    private final Random random;

    Randoms(long seed) {
        random = new Random(seed);
    }

    int below(int bound) {
        return random.nextInt(bound);
    }

    boolean bool() {
        return random.nextBoolean();
    }

    byte[] bytes(int most) {
        byte[] bytes = new byte[below(most + 1)];
        random.nextBytes(bytes);
        return bytes;
    }

    long number() {
        switch (below(4)) {
            case 0:
                return EDGES[below(EDGES.length)];
            case 1:
                return below(2000) - 1000;
            default:
                return random.nextLong() >> below(64);
        }
    }

    /** Without the number by which Flink writes null. */
    long millis() {
        return Math.max(number(), Long.MIN_VALUE + 1);
    }

    int integer() {
        return (int) number();
    }

    double real() {
        switch (below(8)) {
            case 0:
                return new double[] {0.0, -0.0, Double.NaN, Double.POSITIVE_INFINITY, Double.MIN_VALUE, -1.0}[below(6)];
            case 1:
                return below(100);
            case 2:
                return number();
            case 3:
                return (float) random.nextGaussian();
            default:
                return random.nextGaussian() * Math.pow(10, below(40) - 20);
        }
    }

    float single() {
        return below(8) == 0 ? new float[] {0f, -0f, Float.NaN, 1f, 3e9f, 1e20f}[below(6)] : (float) real();
    }

    /** Text without halves of surrogate pairs. */
    String text() {
        StringBuilder text = new StringBuilder();
        int alphabet = below(4);
        for (int i = below(alphabet == 0 ? 14 : 7); i > 0; i--) {
            switch (alphabet) {
                case 0:
                    text.append((char) ('a' + below(26)));
                    break;
                case 1:
                    text.append((char) below(0x80));
                    break;
                case 2:
                    text.append((char) (0x80 + below(0xD700 - 0x80)));
                    break;
                default:
                    text.appendCodePoint(0x10000 + below(0x100000));
            }
        }
        return text.toString();
    }

    /** Text in which halves of surrogate pairs may stand alone. */
    String units() {
        StringBuilder text = new StringBuilder();
        for (int i = below(6); i > 0; i--) {
            text.append((char) (below(2) == 0 ? 0xD800 + below(0x800) : below(0x10000)));
        }
        return text.toString();
    }

    char character() {
        return (char) (below(3) == 0 ? 0xE000 + below(0x1FFF) : below(0xD800));
    }

    BigInteger bigInteger() {
        return below(3) == 0 ? BigInteger.valueOf(number()) : new BigInteger(below(300), random).multiply(BigInteger.valueOf(bool() ? 1 : -1));
    }

    BigDecimal bigDecimal() {
        return new BigDecimal(bigInteger(), below(40) - 10);
    }

    Instant instant() {
        return Instant.ofEpochSecond((random.nextLong() >> 30), below(1_000_000_000));
    }

    LocalDate date() {
        return LocalDate.ofEpochDay(below(2_000_000) - 1_000_000);
    }

    LocalTime time() {
        return LocalTime.ofNanoOfDay((long) (random.nextDouble() * 86_400_000_000_000L));
    }

    LocalDateTime dateTime() {
        return LocalDateTime.of(date(), time());
    }

    Timestamp timestamp() {
        Timestamp timestamp = new Timestamp(random.nextLong() >> 20);
        timestamp.setNanos(below(1_000_000_000));
        return timestamp;
    }

    UUID uuid() {
        return new UUID(random.nextLong(), random.nextLong());
    }
}
