package compat;

import java.util.LinkedHashMap;
import java.util.concurrent.Callable;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.EnumSerializer;
import org.apache.flink.api.common.typeutils.base.GenericArraySerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple1;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.typeutils.runtime.EitherSerializer;
import org.apache.flink.api.java.typeutils.runtime.NullableSerializer;
import org.apache.flink.api.java.typeutils.runtime.RowSerializer;
import org.apache.flink.api.java.typeutils.runtime.TupleSerializer;
import org.apache.flink.runtime.state.ArrayListSerializer;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.operators.TimerSerializer;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;

/** Serializers with nested ones. */
@SuppressWarnings({"rawtypes", "unchecked"})
final class Composites {
    static final TypeSerializer LONG = LongSerializer.INSTANCE;
    static final TypeSerializer INT = IntSerializer.INSTANCE;
    static final TypeSerializer STRING = StringSerializer.INSTANCE;
    static final String SET = "api.common.typeutils.base.SetSerializer";
    static final String TTL = "runtime.state.ttl.TtlStateFactory$TtlSerializer";
    static final String TTL_AWARE = "runtime.state.ttl.TtlAwareSerializer";
    static final String UNION = "streaming.api.datastream.CoGroupedStreams$UnionSerializer";
    static final String BUFFER_ENTRY = "streaming.api.operators.co.IntervalJoinOperator$BufferEntrySerializer";
    static final String STREAM_ELEMENT = "streaming.runtime.streamrecord.StreamElementSerializer";
    static final String TWO_PHASE = "streaming.api.functions.sink.TwoPhaseCommitSinkFunction$StateSerializer"
            + "|streaming.api.functions.sink.legacy.TwoPhaseCommitSinkFunction$StateSerializer";
    static final String LOCKABLE = "cep.nfa.sharedbuffer.Lockable$LockableTypeSerializer";

    private Composites() {}

    /** A subclass of a tuple. */
    public static class Pair extends Tuple2<Long, String> {}

    static void add() {
        Catalog.add("enum", "color", () -> new EnumSerializer<>(Color.class));
        Catalog.add("enum", "hue", () -> new EnumSerializer<>(Hue.class));
        Catalog.add("list", "long", () -> new ListSerializer<>(LONG));
        Catalog.add("list", "string", () -> new ListSerializer<>(STRING));
        Catalog.add("list", "list-long", () -> new ListSerializer<>(new ListSerializer<>(LONG)));
        Catalog.add("list", "array-list-long", () -> new ArrayListSerializer<>(LONG));
        Catalog.add("list", "array-list-string", () -> new ArrayListSerializer<>(STRING));
        Catalog.add("array-list", "long", () -> new ArrayListSerializer<>(LONG));
        Catalog.add("array-list", "string", () -> new ArrayListSerializer<>(STRING));
        Catalog.add("map", "long-string", () -> new MapSerializer<>(LONG, STRING));
        Catalog.add("map", "string-long", () -> new MapSerializer<>(STRING, LONG));
        Catalog.add("map", "long-long", () -> new MapSerializer<>(LONG, LONG));
        Catalog.add("map", "string-string", () -> new MapSerializer<>(STRING, STRING));
        if (Made.exists(SET)) {
            Catalog.add("set", "long", () -> Made.make(SET, LONG));
            Catalog.add("set", "string", () -> Made.make(SET, STRING));
        }
        Catalog.add("tuple", "1-long", () -> tuple(Tuple1.class, LONG));
        Catalog.add("tuple", "2-long-string", () -> tuple(Tuple2.class, LONG, STRING));
        Catalog.add("tuple", "1-string", () -> tuple(Tuple1.class, STRING));
        Catalog.add("tuple", "2-string-long", () -> tuple(Tuple2.class, STRING, LONG));
        Catalog.add("tuple", "2-int-string", () -> tuple(Tuple2.class, INT, STRING));
        Catalog.add("tuple", "3", () -> tuple(Tuple3.class, LONG, STRING, LONG));
        Catalog.add("tuple", "subclass", () -> tuple(Pair.class, LONG, STRING));
        Catalog.add("tuple", "nested", () -> tuple(Tuple2.class, LONG, tuple(Tuple1.class, STRING)));
        Catalog.add("tuple", "nested-int", () -> tuple(Tuple2.class, LONG, tuple(Tuple1.class, INT)));
        Catalog.add("row", "1-long", () -> row(true, LONG));
        Catalog.add("row", "2-long-string", () -> row(true, LONG, STRING));
        Catalog.add("row", "2-long-string-named", () -> named(true, "a", "b"));
        Catalog.add("row", "2-long-string-renamed", () -> named(true, "a", "c"));
        Catalog.add("row", "2-long-string-without-kind", () -> row(false, LONG, STRING));
        Catalog.add("row", "1-long-without-kind", () -> row(false, LONG));
        Catalog.add("row", "2-string-long", () -> row(true, STRING, LONG));
        Catalog.add("row", "2-string-long-without-kind", () -> row(false, STRING, LONG));
        Catalog.add("row", "3", () -> row(true, LONG, STRING, LONG));
        Catalog.add("row", "0", () -> row(true));
        Catalog.add("either", "long-string", () -> new EitherSerializer<>(LONG, STRING));
        Catalog.add("either", "string-long", () -> new EitherSerializer<>(STRING, LONG));
        Catalog.add("either", "long-long", () -> new EitherSerializer<>(LONG, LONG));
        Catalog.add("nullable", "long", () -> NullableSerializer.wrap(LONG, false));
        Catalog.add("nullable", "long-padded", () -> NullableSerializer.wrap(LONG, true));
        Catalog.add("nullable", "int", () -> NullableSerializer.wrap(INT, false));
        Catalog.add("nullable", "int-padded", () -> NullableSerializer.wrap(INT, true));
        Catalog.add("nullable", "string", () -> NullableSerializer.wrap(STRING, false));
        Catalog.add("array", "long", () -> new GenericArraySerializer<>(Long.class, LONG));
        Catalog.add("array", "number", () -> new GenericArraySerializer<>((Class) Number.class, LONG));
        Catalog.add("array", "string", () -> new GenericArraySerializer<>((Class) String.class, STRING));
        Catalog.add("array", "long-as-int", () -> new GenericArraySerializer<>((Class) Long.class, INT));
        addRuntime();
        addCep();
    }

    private static void addRuntime() {
        Catalog.add("ttl", "long", () -> ttl(LONG));
        Catalog.add("ttl", "string", () -> ttl(STRING));
        Catalog.add("ttl", "plain-long", () -> LONG);
        Catalog.add("ttl", "list-of-ttl", () -> new ListSerializer<>(ttl(LONG)));
        Catalog.add("ttl", "list", () -> new ListSerializer<>(LONG));
        Catalog.add("ttl", "map-of-ttl", () -> new MapSerializer<>(LONG, ttl(STRING)));
        Catalog.add("ttl", "map", () -> new MapSerializer<>(LONG, STRING));
        if (Made.exists(TTL_AWARE)) {
            addTtlAware("long", () -> LONG);
            addTtlAware("ttl-long", () -> ttl(LONG));
            addTtlAware("string", () -> STRING);
            addTtlAware("ttl-string", () -> ttl(STRING));
            addTtlAware("row", () -> row(true, LONG));
            addTtlAware("ttl-row-without-kind", () -> ttl(row(false, LONG)));
            Catalog.add("ttl-aware", "not-aware-long", () -> LONG);
            Catalog.add("ttl-aware", "not-aware-ttl-long", () -> ttl(LONG));
            Catalog.add("ttl-aware", "list", () -> new ListSerializer<>(aware(LONG)));
            Catalog.add("ttl-aware", "list-ttl", () -> new ListSerializer<>(aware(ttl(LONG))));
            Catalog.add("ttl-aware", "map", () -> new MapSerializer<>(LONG, aware(STRING)));
            Catalog.add("ttl-aware", "map-ttl", () -> new MapSerializer<>(LONG, aware(ttl(STRING))));
        }
        TypeSerializer window = new TimeWindow.Serializer();
        Catalog.add("timer", "long-void", () -> new TimerSerializer<>(LONG, VoidNamespaceSerializer.INSTANCE));
        Catalog.add("timer", "string-window", () -> new TimerSerializer<>(STRING, window));
        Catalog.add("timer", "long-window", () -> new TimerSerializer<>(LONG, window));
        Catalog.add("union", "long-string", () -> Made.make(UNION, LONG, STRING));
        Catalog.add("union", "long-long", () -> Made.make(UNION, LONG, LONG));
        Catalog.add("buffer-entry", "long", () -> Made.make(BUFFER_ENTRY, LONG));
        Catalog.add("buffer-entry", "string", () -> Made.make(BUFFER_ENTRY, STRING));
        Catalog.add("stream-element", "long", () -> Made.make(STREAM_ELEMENT, LONG));
        Catalog.add("stream-element", "string", () -> Made.make(STREAM_ELEMENT, STRING));
        Catalog.add("two-phase", "long-string", () -> Made.make(TWO_PHASE, LONG, STRING, true));
        Catalog.add("two-phase", "without-null", () -> Made.make(TWO_PHASE, LONG, STRING, false));
        Catalog.add("two-phase", "string-string", () -> Made.make(TWO_PHASE, STRING, STRING, true));
    }

    private static void addCep() {
        Catalog.add("cep", "lockable-long", () -> Made.make(LOCKABLE, LONG));
        Catalog.add("cep", "lockable-string", () -> Made.make(LOCKABLE, STRING));
        Catalog.add("cep", "node-id", () -> Made.make("cep.nfa.sharedbuffer.NodeId$NodeIdSerializer"));
        Catalog.add("cep", "edge", () -> Made.make("cep.nfa.sharedbuffer.SharedBufferEdge$SharedBufferEdgeSerializer"));
        Catalog.add("cep", "node", () -> Made.make("cep.nfa.sharedbuffer.SharedBufferNodeSerializer"));
        Catalog.add("cep", "nfa-state", () -> Made.make("cep.nfa.NFAStateSerializer"));
        Catalog.add("cep", "nfa-state-without-previous", () -> Made.make(
                "cep.nfa.NFAStateSerializer",
                Made.make("cep.nfa.DeweyNumber$DeweyNumberSerializer"),
                Made.make("cep.nfa.sharedbuffer.NodeId$NodeIdSerializer"),
                Made.make("cep.nfa.sharedbuffer.EventId$EventIdSerializer"),
                false));
    }

    private static void addTtlAware(String name, Callable<TypeSerializer> inner) {
        Catalog.add("ttl-aware", name, () -> aware(inner.call()));
    }

    static TypeSerializer aware(TypeSerializer inner) throws Exception {
        return Made.make(TTL_AWARE, inner);
    }

    static TypeSerializer ttl(TypeSerializer inner) throws Exception {
        return Made.make(TTL + "|runtime.state.ttl.TtlSerializer", LONG, inner);
    }

    static TypeSerializer tuple(Class type, TypeSerializer... fields) {
        return new TupleSerializer(type, fields);
    }

    static TypeSerializer row(boolean kind, TypeSerializer... fields) {
        return new RowSerializer(fields, null, kind);
    }

    private static TypeSerializer named(boolean kind, String first, String second) {
        LinkedHashMap<String, Integer> positions = new LinkedHashMap<>();
        positions.put(first, 0);
        positions.put(second, 1);
        return new RowSerializer(new TypeSerializer[] {LONG, STRING}, positions, kind);
    }

    /** An enum. */
    public enum Color {
        RED,
        BLUE
    }

    /** Another enum with the same constants. */
    public enum Hue {
        RED,
        BLUE
    }
}
