package types;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntFunction;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.BasicArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.BasicTypeInfo;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple8;
import org.apache.flink.api.java.typeutils.EitherTypeInfo;
import org.apache.flink.api.java.typeutils.RowTypeInfo;
import org.apache.flink.api.java.typeutils.runtime.NullableSerializer;
import org.apache.flink.api.java.typeutils.runtime.TupleSerializer;
import org.apache.flink.types.Either;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** Value states: a name, a type and the value for each number; the first numbers give the edge cases. */
final class Samples {
    /** One value state. */
    static final class Sample {
        final ValueStateDescriptor<Object> descriptor;
        final IntFunction<?> values;

        @SuppressWarnings("unchecked")
        Sample(ValueStateDescriptor<?> descriptor, IntFunction<?> values) {
            this.descriptor = (ValueStateDescriptor<Object>) descriptor;
            this.values = values;
        }
    }

    private Samples() {}

    static List<Sample> of(String group) {
        switch (group) {
            case "basic-types":
                return basic();
            case "array-types":
                return arrays();
            default:
                List<Sample> all = new ArrayList<>(composite());
                all.addAll(Collections.samples());
                return all;
        }
    }

    static <T> Sample sample(String name, TypeInformation<T> type, IntFunction<T> values) {
        return new Sample(new ValueStateDescriptor<>(name, type), values);
    }

    static <T> Sample sample(String name, TypeSerializer<T> serializer, IntFunction<T> values) {
        return new Sample(new ValueStateDescriptor<>(name, serializer), values);
    }

    @SafeVarargs
    private static <T> T pick(int n, T... values) {
        return values[n % values.length];
    }

    static String text(int n) {
        return pick(n, "", "a", "Grüße", "漢字", "smile 😀", "quote \" and \\ and\nline", "\0", "x".repeat(200));
    }

    private static long millis(int n) {
        return pick(n, 0L, -1L, 1_767_225_600_123L, -62_135_596_800_000L, 86_399_999L);
    }

    private static List<Sample> basic() {
        return Arrays.asList(
                sample("boolean", Types.BOOLEAN, n -> n % 2 == 0),
                sample("byte", Types.BYTE, n -> pick(n, (byte) 0, Byte.MIN_VALUE, Byte.MAX_VALUE, (byte) -1)),
                sample("short", Types.SHORT, n -> pick(n, (short) 0, Short.MIN_VALUE, Short.MAX_VALUE, (short) -1)),
                sample("int", Types.INT, n -> pick(n, 0, Integer.MIN_VALUE, Integer.MAX_VALUE, -1, 65_536)),
                sample("long", Types.LONG, n -> pick(n, 0L, Long.MIN_VALUE, Long.MAX_VALUE, -1L, 1L << 40)),
                sample("float", Types.FLOAT, n -> pick(n, 0f, -0f, Float.NaN, Float.MIN_VALUE, Float.MAX_VALUE,
                        Float.NEGATIVE_INFINITY, 0.1f)),
                sample("double", Types.DOUBLE, n -> pick(n, 0d, -0d, Double.NaN, Double.MIN_VALUE, Double.MAX_VALUE,
                        Double.POSITIVE_INFINITY, 0.1)),
                sample("char", Types.CHAR, n -> pick(n, 'a', '\0', 'é', '漢', '\uffff')),
                sample("string", Types.STRING, Samples::text),
                sample("big-decimal", Types.BIG_DEC, n -> pick(n, BigDecimal.ZERO, BigDecimal.ONE, BigDecimal.TEN,
                        new BigDecimal("-12345678901234567890.123456789"), new BigDecimal("1E+3"),
                        new BigDecimal("0.00"))),
                sample("big-integer", Types.BIG_INT, n -> pick(n, BigInteger.ZERO, BigInteger.ONE, BigInteger.TEN,
                        BigInteger.ONE.negate(), BigInteger.TWO.pow(200), BigInteger.valueOf(128))),
                sample("util-date", BasicTypeInfo.DATE_TYPE_INFO, n -> new java.util.Date(millis(n))),
                sample("sql-date", Types.SQL_DATE, n -> new java.sql.Date(millis(n))),
                sample("sql-time", Types.SQL_TIME, n -> new java.sql.Time(millis(n))),
                sample("sql-timestamp", Types.SQL_TIMESTAMP, n -> timestamp(millis(n), n * 1_000_001)),
                sample("instant", Types.INSTANT, n -> pick(n, Instant.EPOCH, Instant.ofEpochSecond(-1, 999_999_999),
                        Instant.ofEpochMilli(millis(n)), Instant.MAX)),
                sample("local-date", Types.LOCAL_DATE, n -> pick(n, LocalDate.EPOCH, LocalDate.of(2024, 2, 29),
                        LocalDate.of(-44, 3, 15), LocalDate.of(9999, 12, 31))),
                sample("local-time", Types.LOCAL_TIME, n -> pick(n, LocalTime.MIDNIGHT, LocalTime.MAX,
                        LocalTime.of(12, 30, 15, 1))),
                sample("local-date-time", Types.LOCAL_DATE_TIME, n -> pick(n, LocalDateTime.of(1970, 1, 1, 0, 0),
                        LocalDateTime.of(2024, 2, 29, 23, 59, 59, 999_999_999), LocalDateTime.of(1, 1, 1, 0, 0, 0, 5))),
                sample("enum", Types.ENUM(Color.class), n -> pick(n, Color.values())));
    }

    private static java.sql.Timestamp timestamp(long millis, int nanos) {
        java.sql.Timestamp timestamp = new java.sql.Timestamp(millis);
        timestamp.setNanos(nanos);
        return timestamp;
    }

    private static List<Sample> arrays() {
        return Arrays.asList(
                sample("booleans", PrimitiveArrayTypeInfo.BOOLEAN_PRIMITIVE_ARRAY_TYPE_INFO,
                        n -> pick(n, new boolean[0], new boolean[] {true, false, true})),
                sample("bytes", PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO,
                        n -> pick(n, new byte[0], new byte[] {0, -1, 127, -128})),
                sample("shorts", PrimitiveArrayTypeInfo.SHORT_PRIMITIVE_ARRAY_TYPE_INFO,
                        n -> pick(n, new short[0], new short[] {0, -1, Short.MIN_VALUE})),
                sample("ints", PrimitiveArrayTypeInfo.INT_PRIMITIVE_ARRAY_TYPE_INFO,
                        n -> pick(n, new int[0], new int[] {n, -n, Integer.MAX_VALUE})),
                sample("longs", PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO,
                        n -> pick(n, new long[0], new long[] {n, -n, Long.MIN_VALUE})),
                sample("floats", PrimitiveArrayTypeInfo.FLOAT_PRIMITIVE_ARRAY_TYPE_INFO,
                        n -> pick(n, new float[0], new float[] {n, Float.NaN, 0.5f})),
                sample("doubles", PrimitiveArrayTypeInfo.DOUBLE_PRIMITIVE_ARRAY_TYPE_INFO,
                        n -> pick(n, new double[0], new double[] {n, Double.NaN, 0.1})),
                sample("chars", PrimitiveArrayTypeInfo.CHAR_PRIMITIVE_ARRAY_TYPE_INFO,
                        n -> pick(n, new char[0], new char[] {'a', '漢'})),
                sample("strings", BasicArrayTypeInfo.STRING_ARRAY_TYPE_INFO,
                        n -> pick(n, new String[0], new String[] {text(n), null, "z"})),
                sample("boxed-longs", BasicArrayTypeInfo.LONG_ARRAY_TYPE_INFO,
                        n -> pick(n, new Long[0], new Long[] {(long) n, null, -1L})),
                sample("places", Types.OBJECT_ARRAY(TypeInformation.of(Place.class)),
                        n -> pick(n, new Place[0], new Place[] {place(n), null})),
                sample("nested-strings", Types.OBJECT_ARRAY(BasicArrayTypeInfo.STRING_ARRAY_TYPE_INFO),
                        n -> pick(n, new String[0][], new String[][] {{text(n), null}, null, {}})));
    }

    static Place place(int n) {
        return new Place(pick(n, "north", "süd", ""), n * 100 - 300);
    }

    static Person person(Person person, int n) {
        person.name = n % 3 == 0 ? null : text(n);
        person.age = n % 2 == 0 ? null : n;
        person.id = n * 1_000_000_007L;
        person.active = n % 2 == 1;
        person.home = n % 4 == 0 ? null : place(n);
        person.color = n % 5 == 0 ? null : pick(n, Color.values());
        person.born = n % 3 == 1 ? null : Instant.ofEpochSecond(n * 100_000_000L, n);
        person.balance = n % 4 == 1 ? null : BigDecimal.valueOf(n * 12_345L, 2);
        person.tags = n % 3 == 2 ? null : new String[] {text(n), null};
        return person;
    }

    private static Person employee(int n) {
        Employee employee = new Employee();
        employee.badge = n % 2 == 0 ? null : "badge " + n;
        return person(employee, n);
    }

    private static Person guest(int n) {
        Guest guest = new Guest();
        guest.visits = n;
        return person(guest, n);
    }

    static RowTypeInfo rowType() {
        return new RowTypeInfo(
                Types.STRING, Types.INT, Types.INSTANT, BasicArrayTypeInfo.LONG_ARRAY_TYPE_INFO,
                new RowTypeInfo(Types.DOUBLE, Types.BOOLEAN));
    }

    static Row row(int n) {
        Row nested = n % 4 == 0 ? null : Row.of(n / 4.0, n % 3 == 0 ? null : true);
        Row row = Row.ofKind(
                pick(n, RowKind.values()), n % 2 == 0 ? null : text(n), n % 3 == 0 ? null : n,
                n % 5 == 0 ? null : Instant.ofEpochSecond(n), n % 2 == 0 ? new Long[] {(long) n, null} : null, nested);
        return row;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static TypeSerializer<Tuple2<String, Long>> nullableTuple() {
        return new TupleSerializer(Tuple2.class, new TypeSerializer<?>[] {
            NullableSerializer.wrap(StringSerializer.INSTANCE, false),
            NullableSerializer.wrap(LongSerializer.INSTANCE, true)
        });
    }

    private static List<Sample> composite() {
        return Arrays.asList(
                sample("list", Types.LIST(Types.STRING), n -> new ArrayList<>(
                        n % 3 == 0 ? List.of() : List.of(text(n), "second"))),
                sample("map", Types.MAP(Types.STRING, Types.LONG), Samples::map),
                sample("map-of-lists", Types.MAP(Types.INT, Types.LIST(Types.DOUBLE)), n -> {
                    Map<Integer, List<Double>> map = new LinkedHashMap<>();
                    map.put(n, new ArrayList<>(List.of(n / 2.0, -1.0)));
                    map.put(-n - 1, new ArrayList<>());
                    return map;
                }),
                sample("tuple", Types.<Tuple3<String, Long, Place>>TUPLE(
                                Types.STRING, Types.LONG, TypeInformation.of(Place.class)),
                        n -> Tuple3.of(text(n), n - 3L, place(n))),
                sample("null-tuple", Types.<Tuple8<String, BigDecimal, BigInteger, Instant, LocalDate, LocalTime,
                                LocalDateTime, java.sql.Timestamp>>TUPLE(Types.STRING, Types.BIG_DEC, Types.BIG_INT,
                                Types.INSTANT, Types.LOCAL_DATE, Types.LOCAL_TIME, Types.LOCAL_DATE_TIME,
                                Types.SQL_TIMESTAMP),
                        // no null timestamp: SqlTimestampSerializer reads 8 of its 12 bytes, after which heap native state is lost
                        n -> n % 2 == 0 ? Tuple8.of(null, null, null, null, null, null, null, timestamp(0, n)) : Tuple8.of("t", BigDecimal.TEN, BigInteger.TEN, Instant.EPOCH,
                                LocalDate.EPOCH, LocalTime.NOON, LocalDateTime.of(2000, 1, 1, 0, 0), timestamp(0, n))),
                sample("nullable-tuple", nullableTuple(),
                        n -> Tuple2.of(n % 2 == 0 ? null : text(n), n % 3 == 0 ? null : (long) n)),
                sample("nullable-int", NullableSerializer.wrap(IntSerializer.INSTANCE, true), n -> n),
                sample("row", rowType(), Samples::row),
                sample("either", new EitherTypeInfo<>(Types.STRING, Types.LONG),
                        n -> n % 2 == 0 ? Either.Left(text(n)) : Either.Right((long) n)),
                sample("list-of-tuples", Types.LIST(Types.<Tuple2<Integer, String>>TUPLE(Types.INT, Types.STRING)),
                        n -> new ArrayList<>(List.of(Tuple2.of(n, text(n)), Tuple2.of(-1, "")))),
                sample("person", TypeInformation.of(Person.class),
                        n -> n % 3 == 2 ? employee(n) : person(new Person(), n)),
                sample("person-or-guest", TypeInformation.of(Person.class),
                        n -> n % 2 == 1 ? guest(n) : person(new Person(), n)));
    }

    private static Map<String, Long> map(int n) {
        Map<String, Long> map = new LinkedHashMap<>();
        for (int i = 0; i < n % 4; i++) {
            map.put(text(i + n), i == 1 ? null : (long) n * i);
        }
        return map;
    }
}
