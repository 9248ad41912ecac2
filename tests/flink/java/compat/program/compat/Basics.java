package compat;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.typeutils.runtime.CopyableValueSerializer;
import org.apache.flink.api.java.typeutils.runtime.ValueSerializer;
import org.apache.flink.types.IntValue;
import org.apache.flink.types.LongValue;
import org.apache.flink.types.ListValue;
import org.apache.flink.types.StringValue;

/** Serializers without nested ones. */
final class Basics {
    private static final String BASE = "api.common.typeutils.base.";
    private static final String[] KINDS = {
        "Long", "String", "Boolean", "Byte", "Short", "Char", "Int", "Float", "Double", "BigInt", "BigDec", "Date",
        "SqlDate", "SqlTime", "SqlTimestamp", "Instant", "LocalDate", "LocalTime", "LocalDateTime", "Void",
        "BooleanValue", "ByteValue", "ShortValue", "CharValue", "IntValue", "LongValue", "FloatValue", "DoubleValue",
        "StringValue", "NullValue", "Variant",
    };
    private static final String[] ARRAYS = {"Boolean", "Byte", "Short", "Char", "Int", "Long", "Float", "Double"};
    private static final String[] OTHERS = {
        "runtime.state.VoidNamespaceSerializer",
        "streaming.api.windowing.windows.TimeWindow$Serializer",
        "streaming.api.windowing.windows.GlobalWindow$Serializer",
        "table.runtime.operators.window.TimeWindow$Serializer",
        "table.runtime.operators.window.CountWindow$Serializer",
        "table.runtime.typeutils.StringDataSerializer",
        "table.dataview.NullSerializer",
        "api.java.typeutils.runtime.Tuple0Serializer",
        "runtime.state.JavaSerializer",
        "cep.nfa.DeweyNumber$DeweyNumberSerializer",
        "cep.nfa.sharedbuffer.EventId$EventIdSerializer",
    };

    private Basics() {}

    static void add() {
        for (String kind : KINDS) {
            addIfThere(kind, BASE + kind + "Serializer");
        }
        for (String kind : ARRAYS) {
            addIfThere(kind + "[]", BASE + "array." + kind + "PrimitiveArraySerializer");
        }
        addIfThere("String[]", BASE + "array.StringArraySerializer");
        for (String name : OTHERS) {
            addIfThere(name, name);
        }
        Catalog.add("class", "value-list", () -> new ValueSerializer<>(Longs.class));
        Catalog.add("class", "copyable-long", () -> new CopyableValueSerializer<>(LongValue.class));
        Catalog.add("class", "value-other", () -> new ValueSerializer<>(Strings.class));
        Catalog.add("class", "value-string", () -> new ValueSerializer<>(StringValue.class));
        Catalog.add("class", "copyable-int", () -> new CopyableValueSerializer<>(IntValue.class));
        Catalog.add("class", "copyable-string", () -> new CopyableValueSerializer<>(StringValue.class));
    }

    private static void addIfThere(String name, String className) {
        if (Made.exists(className)) {
            Catalog.add("basic", name, () -> (TypeSerializer<?>) Made.make(className));
        }
    }

    /** A value class. */
    public static class Longs extends ListValue<LongValue> {}

    /** Another value class. */
    public static class Strings extends ListValue<StringValue> {}
}
