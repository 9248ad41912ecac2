package keygroups;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Supplier;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshotSerializationUtil;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple1;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.api.java.typeutils.EitherTypeInfo;
import org.apache.flink.api.java.typeutils.TypeExtractor;
import org.apache.flink.core.memory.DataOutputViewStreamWrapper;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.table.data.DecimalData;
import org.apache.flink.table.data.GenericArrayData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.ArrayType;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.BooleanType;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.TimestampType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.types.DoubleValue;
import org.apache.flink.types.Either;
import org.apache.flink.types.IntValue;
import org.apache.flink.types.LongValue;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.types.StringValue;

/** Random keys of every type. */
@SuppressWarnings({"rawtypes", "unchecked"})
public final class Samples {
    private static final int[] LIMITS = {1, 2, 7, 96, 127, 128, 129, 1024, 32768};
    private final Randoms random;
    private final Random limits;
    private final int count;
    private final StringBuilder lines;

    public Samples(long seed, int count, StringBuilder lines) {
        random = new Randoms(seed);
        limits = new Random(seed + 1);
        this.count = count;
        this.lines = lines;
    }

    public void write() throws Exception {
        writeBasics();
        writeComposites();
        writeTables();
        writeClasses();
        writeAvro();
        writeScala();
    }

    private void writeBasics() throws Exception {
        add("String", Types.STRING, random::text);
        add("String units", Types.STRING, random::units);
        add("Boolean", Types.BOOLEAN, random::bool);
        add("Byte", Types.BYTE, () -> (byte) random.number());
        add("Short", Types.SHORT, () -> (short) random.number());
        add("Int", Types.INT, random::integer);
        add("Long", Types.LONG, random::number);
        add("Float", Types.FLOAT, random::single);
        add("Double", Types.DOUBLE, random::real);
        add("Char", Types.CHAR, random::character);
        add("BigInt", Types.BIG_INT, random::bigInteger);
        add("BigDec", Types.BIG_DEC, random::bigDecimal);
        add("Date", TypeInformation.of(java.util.Date.class), () -> new java.util.Date(random.millis()));
        add("SqlDate", Types.SQL_DATE, () -> new java.sql.Date(random.millis()));
        add("SqlTime", Types.SQL_TIME, () -> new java.sql.Time(random.millis()));
        add("SqlTimestamp", Types.SQL_TIMESTAMP, random::timestamp);
        add("Instant", Types.INSTANT, random::instant);
        add("LocalDate", Types.LOCAL_DATE, random::date);
        add("LocalTime", Types.LOCAL_TIME, random::time);
        add("LocalDateTime", Types.LOCAL_DATE_TIME, random::dateTime);
        add("IntValue", TypeInformation.of(IntValue.class), () -> new IntValue(random.integer()));
        add("LongValue", TypeInformation.of(LongValue.class), () -> new LongValue(random.number()));
        add("DoubleValue", TypeInformation.of(DoubleValue.class), () -> new DoubleValue(random.real()));
        add("StringValue", TypeInformation.of(StringValue.class), () -> new StringValue(random.text()));
        add("UUID", Types.GENERIC(java.util.UUID.class), random::uuid);
        add("Duration", Types.GENERIC(java.time.Duration.class), () -> java.time.Duration.ofNanos(random.number()));
    }

    private void writeComposites() throws Exception {
        add("Tuple1", Types.TUPLE(Types.LONG), () -> Tuple1.of(random.number()));
        add("Tuple2", Types.TUPLE(Types.STRING, Types.LONG), () -> Tuple2.of(random.text(), random.number()));
        add("Tuple3", Types.TUPLE(Types.INT, Types.BOOLEAN, Types.DOUBLE),
                () -> Tuple3.of(random.integer(), random.bool(), random.real()));
        add("Tuple4", Types.TUPLE(Types.STRING, Types.STRING, Types.SHORT, Types.BIG_DEC),
                () -> Tuple4.of(random.text(), random.text(), (short) random.number(), random.bigDecimal()));
        add("Tuple5", Types.TUPLE(Types.TUPLE(Types.STRING, Types.INT), Types.LOCAL_DATE, Types.CHAR, Types.INSTANT, Types.FLOAT),
                () -> Tuple5.of(Tuple2.of(random.text(), random.integer()), random.date(), random.character(), random.instant(), random.single()));
        add("Row", Types.ROW(Types.STRING, Types.LONG, Types.BOOLEAN), () -> {
            Row row = Row.ofKind(RowKind.values()[random.below(4)], nullable(random::text), nullable(random::number), nullable(random::bool));
            return row;
        });
        TypeInformation<?> bytes = Types.PRIMITIVE_ARRAY(Types.BYTE);
        add("Row nested", Types.ROW(Types.ROW(Types.INT, bytes), Types.PRIMITIVE_ARRAY(Types.LONG),
                        Types.OBJECT_ARRAY(Types.STRING), Types.LIST(Types.STRING), Types.MAP(Types.STRING, Types.INT)),
                () -> Row.of(Row.of(random.integer(), nullable(() -> random.bytes(4))), new long[] {random.number()},
                        new String[] {random.text(), random.text()}, List.of(random.text(), random.text()),
                        Map.of("a", random.integer(), "b", random.integer())));
        add("Either", new EitherTypeInfo(Types.STRING, Types.LONG),
                () -> random.bool() ? Either.Left(random.text()) : Either.Right(random.number()));
        addSerializer("List", new ListSerializer<>(StringSerializer.INSTANCE),
                () -> new ArrayList<>(List.of(random.text(), random.text())));
        addSerializer("Map", new MapSerializer<>(StringSerializer.INSTANCE, LongSerializer.INSTANCE), () -> {
            Map<String, Long> map = new HashMap<>();
            for (int i = random.below(4); i > 0; i--) {
                map.put(random.text(), random.number());
            }
            return map;
        });
        add("Tuple2 of ObjectsKey", Types.TUPLE(TypeInformation.of(Keys.ObjectsKey.class), Types.INT),
                () -> Tuple2.of(fill(new Keys.ObjectsKey()), random.integer()));
    }

    private void writeTables() throws Exception {
        addRow("RowData", () -> GenericRowData.of(nullable(this::data), nullable(random::number), nullable(random::integer)),
                new VarCharType(), new BigIntType(), new IntType());
        addRow("RowData wide",
                () -> GenericRowData.of(nullable(random::bool), nullable(random::real),
                        nullable(() -> DecimalData.fromBigDecimal(new java.math.BigDecimal(java.math.BigInteger.valueOf(random.number()), 4), 38, 4)),
                        nullable(() -> TimestampData.fromEpochMillis(random.number() >> 16, random.below(1_000_000))),
                        nullable(this::data)),
                new BooleanType(), new DoubleType(), new DecimalType(38, 4), new TimestampType(9), new VarCharType());
        addRow("RowData nested",
                () -> GenericRowData.of(GenericRowData.of(random.integer(), data()),
                        new GenericArrayData(new Object[] {data(), null, data()})),
                RowType.of(new IntType(), new VarCharType()), new ArrayType(new VarCharType()));
    }

    private Object data() {
        return StringData.fromString(random.text());
    }

    private void addRow(String type, Supplier<RowData> make, LogicalType... types) throws Exception {
        RowDataSerializer serializer = new RowDataSerializer(types);
        addSerializer(type, (TypeSerializer) serializer, () -> serializer.toBinaryRow(make.get()).copy());
    }

    private void writeClasses() throws Exception {
        addClass(Keys.RecordKey.class, this::place);
        addClass(Keys.WideKey.class, () -> new Keys.WideKey(random.integer(), random.text(), random.number(),
                (short) random.number(), random.text(), random.integer(), (byte) random.number()));
        addClass(Keys.ObjectsKey.class, () -> fill(new Keys.ObjectsKey()));
        addClass(Keys.ObjectsAllKey.class, () -> fill(new Keys.ObjectsAllKey()));
        addClass(Keys.EclipseKey.class, () -> fill(new Keys.EclipseKey()));
        addClass(Keys.IntellijKey.class, () -> fill(new Keys.IntellijKey()));
        addClass(Keys.LombokKey.class, () -> fill(new Keys.LombokKey()));
        addClass(Keys.LombokBoxedKey.class, () -> {
            Keys.LombokBoxedKey key = new Keys.LombokBoxedKey();
            key.sure = nullable(random::bool);
            key.flag = random.bool();
            key.region = nullable(random::text);
            key.parts = new int[] {random.integer(), random.integer()};
            return key;
        });
        addClass(Keys.KotlinKey.class, () -> fill(new Keys.KotlinKey()));
        addClass(Keys.CommonsKey.class, () -> fill(new Keys.CommonsKey()));
        addClass(Keys.CommonsOddKey.class, () -> fill(new Keys.CommonsOddKey()));
        addClass(Keys.AutoValueKey.class, () -> fill(new Keys.AutoValueKey()));
        addClass(Keys.ImmutablesKey.class, () -> fill(new Keys.ImmutablesKey()));
        addClass(Keys.NetbeansKey.class, () -> fill(new Keys.NetbeansKey()));
        addClass(Keys.BlochKey.class, () -> fill(new Keys.BlochKey()));
        addClass(Keys.OneFieldKey.class, () -> fill(new Keys.OneFieldKey()));
        addClass(Keys.CastKey.class, () -> fill(new Keys.CastKey()));
        addClass(Keys.SumKey.class, () -> fill(new Keys.SumKey()));
        addClass(Keys.XorKey.class, () -> fill(new Keys.XorKey()));
        addClass(Keys.EnumKey.class, () -> {
            Keys.EnumKey key = new Keys.EnumKey();
            key.color = Keys.Color.values()[random.below(3)];
            key.number = random.integer();
            key.region = nullable(random::text);
            return key;
        });
        addClass(Keys.OuterKey.class, () -> {
            Keys.OuterKey key = new Keys.OuterKey();
            key.place = nullable(this::place);
            key.shard = random.integer();
            return key;
        });
        addClass(Keys.OddKey.class, () -> fill(new Keys.OddKey()));
    }

    private Keys.RecordKey place() {
        return new Keys.RecordKey(nullable(random::text), random.integer(), nullable(random::bool), random.number());
    }

    private <K extends Keys.Base> K fill(K key) {
        key.region = nullable(random::text);
        key.number = random.integer();
        key.id = random.number();
        key.flag = random.bool();
        key.ratio = random.real();
        key.weight = random.single();
        return key;
    }

    private <T> T nullable(Supplier<T> make) {
        return random.below(6) == 0 ? null : make.get();
    }

    private void writeAvro() throws Exception {
        String color = "{\"type\":\"enum\",\"name\":\"Color\",\"symbols\":[\"RED\",\"GREEN\"]}";
        String flat = "{\"type\":\"record\",\"name\":\"Flat\",\"namespace\":\"com.acme\",\"fields\":["
                + "{\"name\":\"text\",\"type\":\"string\"},{\"name\":\"number\",\"type\":[\"null\",\"int\"]},"
                + "{\"name\":\"id\",\"type\":\"long\",\"order\":\"descending\"},{\"name\":\"flag\",\"type\":\"boolean\"},"
                + "{\"name\":\"note\",\"type\":\"string\",\"order\":\"ignore\"},{\"name\":\"color\",\"type\":" + color + "},"
                + "{\"name\":\"raw\",\"type\":\"bytes\"},{\"name\":\"sum\",\"type\":[\"double\",\"string\",\"null\"]},"
                + "{\"name\":\"four\",\"type\":{\"type\":\"fixed\",\"name\":\"Four\",\"size\":4}}]}";
        String deep = "{\"type\":\"record\",\"name\":\"Deep\",\"namespace\":\"com.acme\",\"fields\":["
                + "{\"name\":\"number\",\"type\":\"int\"},{\"name\":\"list\",\"type\":{\"type\":\"array\",\"items\":[\"null\",\"string\"]}},"
                + "{\"name\":\"place\",\"type\":[\"null\",{\"type\":\"record\",\"name\":\"Place\",\"fields\":["
                + "{\"name\":\"region\",\"type\":\"string\"},{\"name\":\"weight\",\"type\":\"float\"}]}]},"
                + "{\"name\":\"map\",\"type\":{\"type\":\"map\",\"values\":\"string\"}},{\"name\":\"last\",\"type\":\"int\"}]}";
        Schema flatSchema = new Schema.Parser().parse(flat);
        Schema deepSchema = new Schema.Parser().parse(deep);
        lines.append("A\tAvro flat\t" + flat + "\nA\tAvro deep\t" + deep + "\nA\tAvro deep classic\t" + deep + "\n");
        for (int i = 0; i < count; i++) {
            GenericData.Record record = new GenericData.Record(flatSchema);
            record.put("text", random.text());
            record.put("number", nullable(random::integer));
            record.put("id", random.number());
            record.put("flag", random.bool());
            record.put("note", random.text());
            record.put("color", new GenericData.EnumSymbol(flatSchema.getField("color").schema(), random.bool() ? "RED" : "GREEN"));
            record.put("raw", ByteBuffer.wrap(random.bytes(5)));
            record.put("sum", random.bool() ? random.real() : nullable(random::text));
            record.put("four", new GenericData.Fixed(flatSchema.getField("four").schema(), new byte[] {1, 2, (byte) random.number(), -4}));
            addKey("Avro flat", avro(flatSchema, record), record);
        }
        Schema placeSchema = deepSchema.getField("place").schema().getTypes().get(1);
        for (int i = 0; i < count; i++) {
            GenericData.Record record = new GenericData.Record(deepSchema);
            record.put("number", random.integer());
            List<Object> list = new ArrayList<>();
            for (int j = random.below(12); j > 0; j--) {
                list.add(nullable(() -> new org.apache.avro.util.Utf8(random.text())));
            }
            record.put("list", list);
            GenericData.Record place = new GenericData.Record(placeSchema);
            place.put("region", random.text());
            place.put("weight", random.single());
            record.put("place", random.below(4) == 0 ? null : place);
            Map<Object, Object> map = new HashMap<>();
            for (int j = random.below(3); j > 0; j--) {
                map.put(new org.apache.avro.util.Utf8(random.text()), new org.apache.avro.util.Utf8(random.text()));
            }
            record.put("map", map);
            record.put("last", random.integer());
            addKey("Avro deep", avro(deepSchema, record), record);
            addKey("Avro deep classic", avro(deepSchema, record), classicHash(record, deepSchema));
        }
    }

    /** {@code GenericData.hashCode} of older releases. */
    private static int classicHash(Object value, Schema schema) {
        if (value == null) {
            return 0;
        }
        int code = 1;
        switch (schema.getType()) {
            case RECORD:
                for (Schema.Field field : schema.getFields()) {
                    if (field.order() != Schema.Field.Order.IGNORE) {
                        code = 31 * code + classicHash(((GenericData.Record) value).get(field.pos()), field.schema());
                    }
                }
                return code;
            case ARRAY:
                for (Object element : (List<?>) value) {
                    code = 31 * code + classicHash(element, schema.getElementType());
                }
                return code;
            case UNION:
                return classicHash(value, schema.getTypes().get(GenericData.get().resolveUnion(schema, value)));
            case STRING:
                return classicText(value);
            case MAP:
                int sum = 0;
                for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                    sum += classicText(entry.getKey()) ^ classicText(entry.getValue());
                }
                return sum;
            default:
                return value.hashCode();
        }
    }

    private static int classicText(Object text) {
        int code = 0;
        for (byte each : text.toString().getBytes(StandardCharsets.UTF_8)) {
            code = 31 * code + each;
        }
        return code;
    }

    private static byte[] avro(Schema schema, GenericData.Record record) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        new GenericDatumWriter<GenericData.Record>(schema).write(record, new FlinkAvroEncoder(new DataOutputStream(bytes)));
        return bytes.toByteArray();
    }

    private void writeScala() throws Exception {
        TypeSerializer<Tuple4<Integer, Long, String, Double>> serializer =
                serializer(Types.TUPLE(Types.INT, Types.LONG, Types.STRING, Types.DOUBLE));
        for (int i = 0; i < count; i++) {
            Tuple4<Integer, Long, String, Double> fields =
                    Tuple4.of(random.integer(), random.number(), random.text(), random.real());
            scala.Tuple4<Object, Object, Object, Object> tuple =
                    new scala.Tuple4<>(fields.f0, fields.f1, fields.f2, fields.f3);
            byte[] bytes = write(serializer, fields);
            addKey("Scala 2.13 Tuple4", bytes, tuple);
            int classic = scala.util.hashing.MurmurHash3$.MODULE$.productHash(tuple, 0xcafebabe, true);
            addKey("Scala 2.12 Tuple4", bytes, classic);
        }
        for (int i = 0; i < count; i++) {
            Float number = random.single();
            addKey("Scala Float", write(serializer(Types.FLOAT), number), scala.runtime.Statics.anyHash(number));
        }
    }

    private <T> void addClass(Class<T> type, Supplier<T> make) throws Exception {
        add(type.getSimpleName(), (TypeInformation<T>) TypeExtractor.createTypeInfo(type), make);
    }

    private <T> void add(String type, TypeInformation<T> info, Supplier<?> make) throws Exception {
        addSerializer(type, serializer(info), (Supplier) make);
    }

    private static <T> TypeSerializer<T> serializer(TypeInformation<T> info) {
        return info.createSerializer(new SerializerConfigImpl());
    }

    private <T> void addSerializer(String type, TypeSerializer<T> serializer, Supplier<T> make) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        TypeSerializerSnapshotSerializationUtil.writeSerializerSnapshot(
                new DataOutputViewStreamWrapper(bytes), serializer.snapshotConfiguration());
        lines.append("S\t" + type + "\t" + hex(bytes.toByteArray()) + "\n");
        for (int i = 0; i < count; i++) {
            T key = make.get();
            addKey(type, write(serializer, key), key);
        }
    }

    private static <T> byte[] write(TypeSerializer<T> serializer, T key) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        serializer.serialize(key, new DataOutputViewStreamWrapper(bytes));
        return bytes.toByteArray();
    }

    /** A key and its hash; {@code key} is the object, or its hash where there is no object of that release. */
    private void addKey(String type, byte[] bytes, Object key) {
        int max = limits.nextBoolean() ? LIMITS[limits.nextInt(LIMITS.length)] : 1 + limits.nextInt(32768);
        int group = KeyGroupRangeAssignment.assignToKeyGroup(key, max);
        int code = key.hashCode();
        lines.append("K\t" + type + "\t" + hex(bytes) + "\t" + code + "\t" + max + "\t" + group + "\n");
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        }
        return text.toString();
    }
}
