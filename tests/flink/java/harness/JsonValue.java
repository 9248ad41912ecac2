package harness;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.types.Either;
import org.apache.flink.types.Row;

/** State values as JSON; what JSON has no word for carries a tag, such as {@code {"@bytes":"00ff"}}. */
final class JsonValue {
    private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("HH:mm:ss.SSSSSSSSS");
    private static final DateTimeFormatter DATE_TIME = DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSSSSSSSS");

    private JsonValue() {}

    static String of(Object value) {
        if (value == null || value instanceof VoidNamespace) {
            return "null";
        } else if (value instanceof Float || value instanceof Double) {
            double number = ((Number) value).doubleValue();
            return Double.isFinite(number) ? Double.toString(number) : quote(Double.toString(number));
        } else if (value instanceof BigDecimal) {
            return tag("@dec", quote(((BigDecimal) value).toPlainString()));
        } else if (value instanceof BigInteger) {
            return tag("@bigint", quote(value.toString()));
        } else if (value instanceof Boolean || value instanceof Number) {
            return value.toString();
        } else if (value instanceof String || value instanceof Character) {
            return quote(value.toString());
        } else if (value instanceof Enum) {
            return tag("@enum", quote(((Enum<?>) value).name()));
        }
        String time = ofTime(value);
        if (time != null) {
            return time;
        }
        String composite = ofComposite(value);
        String row = ofBinaryRow(value);
        return composite != null ? composite : row != null ? row : ofPojo(value);
    }

    private static String ofTime(Object value) {
        if (value instanceof Instant) {
            return tag("@instant", "[" + ((Instant) value).getEpochSecond() + "," + ((Instant) value).getNano() + "]");
        } else if (value instanceof LocalDate) {
            return tag("@date", quote(value.toString()));
        } else if (value instanceof LocalTime) {
            return tag("@time", quote(TIME.format((LocalTime) value)));
        } else if (value instanceof LocalDateTime) {
            return tag("@datetime", quote(DATE_TIME.format((LocalDateTime) value)));
        } else if (value instanceof java.sql.Timestamp) {
            java.sql.Timestamp timestamp = (java.sql.Timestamp) value;
            return tag("@sqlTimestamp", "[" + timestamp.getTime() + "," + timestamp.getNanos() + "]");
        } else if (value instanceof java.util.Date) {
            String name = value instanceof java.sql.Date ? "@sqlDate" : value instanceof java.sql.Time ? "@sqlTime" : "@juDate";
            return tag(name, Long.toString(((java.util.Date) value).getTime()));
        } else if (value instanceof TimeWindow) {
            return tag("@window", "[" + ((TimeWindow) value).getStart() + "," + ((TimeWindow) value).getEnd() + "]");
        }
        return null;
    }

    private static String hex(byte[] bytes) {
        StringBuilder hex = new StringBuilder();
        for (byte b : bytes) {
            hex.append(String.format("%02x", b));
        }
        return quote(hex.toString());
    }

    /** A row of SQL as the bytes that it is: it does not say its types; null for anything else. */
    private static String ofBinaryRow(Object value) {
        if (!value.getClass().getName().equals("org.apache.flink.table.data.binary.BinaryRowData")) {
            return null;
        }
        try {
            MemorySegment[] segments = (MemorySegment[]) Reflection.call(value, "getSegments");
            byte[] bytes = new byte[(int) Reflection.call(value, "getSizeInBytes")];
            // a copy of the row has one segment
            segments[0].get((int) Reflection.call(value, "getOffset"), bytes);
            return tag("@rowdata", hex(bytes));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    private static String ofComposite(Object value) {
        if (value instanceof byte[]) {
            return tag("@bytes", hex((byte[]) value));
        } else if (value instanceof Tuple) {
            Tuple tuple = (Tuple) value;
            List<Object> fields = new ArrayList<>();
            for (int i = 0; i < tuple.getArity(); i++) {
                fields.add(tuple.getField(i));
            }
            return tag("@tuple", list(fields));
        } else if (value instanceof Row) {
            Row row = (Row) value;
            List<Object> fields = new ArrayList<>();
            for (int i = 0; i < row.getArity(); i++) {
                fields.add(row.getField(i));
            }
            return "{\"@row\":" + list(fields) + ",\"@kind\":" + quote(row.getKind().shortString()) + "}";
        } else if (value instanceof Either) {
            Either<?, ?> either = (Either<?, ?>) value;
            return either.isLeft() ? tag("@left", of(either.left())) : tag("@right", of(either.right()));
        } else if (value instanceof Map) {
            TreeMap<String, String> sorted = new TreeMap<>();
            ((Map<?, ?>) value).forEach((key, item) -> sorted.put(of(key), of(item)));
            return tag("@map", bracket(sorted.entrySet().stream().map(e -> "[" + e.getKey() + "," + e.getValue() + "]")));
        } else if (value instanceof Set) {
            return tag("@set", bracket(((Set<?>) value).stream().map(JsonValue::of).sorted()));
        } else if (value instanceof Collection) {
            return list((Collection<?>) value);
        } else if (value.getClass().isArray()) {
            List<Object> items = new ArrayList<>();
            for (int i = 0; i < Array.getLength(value); i++) {
                items.add(Array.get(value, i));
            }
            return list(items);
        }
        return null;
    }

    private static String ofPojo(Object value) {
        TreeMap<String, Field> fields = new TreeMap<>();
        for (Class<?> type = value.getClass(); type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers()) && !Modifier.isTransient(field.getModifiers())) {
                    fields.put(field.getName(), field);
                }
            }
        }
        JsonObject object = new JsonObject().put("@class", value.getClass().getName());
        fields.forEach((name, field) -> {
            try {
                field.setAccessible(true);
                object.put(name, field.get(value));
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
        });
        return object.toString();
    }

    static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }

    private static String tag(String name, String json) {
        return "{" + quote(name) + ":" + json + "}";
    }

    private static String list(Collection<?> items) {
        return bracket(items.stream().map(JsonValue::of));
    }

    private static String bracket(Stream<String> items) {
        return items.collect(Collectors.joining(",", "[", "]"));
    }
}
