package compat;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.GenericArraySerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.typeutils.GenericTypeInfo;
import org.apache.flink.api.java.typeutils.runtime.EitherSerializer;
import org.apache.flink.api.java.typeutils.runtime.NullableSerializer;
import org.apache.flink.runtime.state.ArrayListSerializer;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.operators.TimerSerializer;

/** Serializers of the classes of one of the two source trees: the side is `old` or `new`. */
@SuppressWarnings({"rawtypes", "unchecked"})
public final class Evolving {
    // One class for each thing that can come of a restore.
    private static final List<String> CASES = Arrays.asList(
            "Fields$Same", "Fields$Added", "Fields$TypeChanged", "Enums$AddedAtEnd", "Enums$Removed");
    private final ClassLoader loader;
    private final String side;
    private final Map<String, TypeSerializer<?>> all = new LinkedHashMap<>();

    public Evolving(ClassLoader loader, String side) {
        this.loader = loader;
        this.side = side;
    }

    /** Every class of the tree by its name, and the wrapped ones. */
    public Map<String, TypeSerializer<?>> list() throws Exception {
        for (Class<?> each : (Class<?>[]) load("Index").getField("CLASSES").get(null)) {
            all.put(each.getName().substring("evolving.".length()), make(each));
        }
        addSubclasses();
        addRenamed();
        for (String name : CASES) {
            addWrapped(name);
        }
        for (String first : CASES) {
            for (String second : CASES) {
                all.put("tuple/" + first + "/" + second, Composites.tuple(Tuple2.class, make(first), make(second)));
            }
        }
        return all;
    }

    private Class<?> load(String name) throws Exception {
        return Class.forName("evolving." + name, true, loader);
    }

    private TypeSerializer make(String name) throws Exception {
        return make(load(name));
    }

    private static TypeSerializer make(Class<?> type, Class<?>... registered) {
        SerializerConfigImpl config = new SerializerConfigImpl();
        for (Class<?> each : registered) {
            config.registerPojoType(each);
        }
        return TypeInformation.of(type).createSerializer(config);
    }

    private void addSubclasses() throws Exception {
        Class<?> base = load("Subclasses$Base");
        for (String name : new String[] {"SameSub", "AddedSub", "RemovedSub", "ChangedSub", "EnumSub"}) {
            Class<?> sub = load("Subclasses$" + name);
            all.put("registered/" + name, make(base, sub));
            all.put("not-registered/" + name, Pojos.use(make(base), sub.getConstructor().newInstance()));
            all.put("no-longer-registered/" + name, side.equals("old") ? make(base, sub) : make(base));
        }
        Class<?> gone = load(side.equals("old") ? "Subclasses$GoneSub" : "Subclasses$SameSub");
        all.put("registered/missing-now", make(base, gone));
        all.put("not-registered/missing-now", Pojos.use(make(base), gone.getConstructor().newInstance()));
        Class<?> parent = load("Subclasses$ChangedBase");
        all.put("registered/base-changed", make(parent, load("Subclasses$ChangedBaseSub")));
    }

    private void addRenamed() throws Exception {
        boolean old = side.equals("old");
        all.put("renamed/pojo", make(old ? "Before" : "After"));
        all.put("renamed/enum", make(old ? "BeforeEnum" : "AfterEnum"));
        all.put("renamed/kryo", generic(old ? "Before" : "After"));
        all.put("renamed/array", new GenericArraySerializer(load(old ? "Before" : "After"), make("Fields$Same")));
        all.put("kryo/same", generic("Fields$Same"));
        all.put("kryo/added", generic("Fields$Added"));
        all.put("kryo/became-pojo", old ? generic("Fields$Same") : make("Fields$Same"));
        all.put("kryo/was-pojo", old ? make("Fields$Same") : generic("Fields$Same"));
        Class<?> registered = load(old ? "Before" : "After");
        all.put("kryo/registered-is-missing-now", generic("Fields$Same", registered));
        all.put("kryo/registered-is-new", old ? generic("Fields$Same") : generic("Fields$Same", registered));
        all.put("kryo/registered-went", old ? generic("Fields$Same", load("Fields$Added")) : generic("Fields$Same"));
    }

    private TypeSerializer generic(String name, Class<?>... registered) throws Exception {
        SerializerConfigImpl config = new SerializerConfigImpl();
        for (Class<?> each : registered) {
            config.registerKryoType(each);
        }
        return new GenericTypeInfo<>(load(name)).createSerializer(config);
    }

    private void addWrapped(String name) throws Exception {
        TypeSerializer inner = make(name);
        TypeSerializer other = Composites.LONG;
        all.put("list/" + name, new ListSerializer<>(inner));
        all.put("array-list/" + name, new ArrayListSerializer<>(inner));
        all.put("map-key/" + name, new MapSerializer<>(inner, other));
        all.put("map-value/" + name, new MapSerializer<>(other, inner));
        all.put("either/" + name, new EitherSerializer<>(other, inner));
        all.put("nullable/" + name, NullableSerializer.wrap(inner, false));
        all.put("array/" + name, new GenericArraySerializer(load(name), inner));
        all.put("row/" + name, Composites.row(true, other, inner));
        all.put("row-without-kind-now/" + name, Composites.row(side.equals("old"), other, inner));
        all.put("ttl/" + name, Composites.ttl(inner));
        all.put("ttl-on/" + name, side.equals("old") ? inner : Composites.ttl(inner));
        all.put("ttl-off/" + name, side.equals("old") ? Composites.ttl(inner) : inner);
        all.put("timer/" + name, new TimerSerializer<>(inner, VoidNamespaceSerializer.INSTANCE));
        all.put("union/" + name, Made.make(Composites.UNION, inner, other));
        all.put("buffer-entry/" + name, Made.make(Composites.BUFFER_ENTRY, inner));
        all.put("stream-element/" + name, Made.make(Composites.STREAM_ELEMENT, inner));
        all.put("two-phase/" + name, Made.make(Composites.TWO_PHASE, inner, other, side.equals("old")));
        all.put("lockable/" + name, Made.make(Composites.LOCKABLE, inner));
        all.put("linked-list/" + name, Made.make("table.runtime.typeutils.LinkedListSerializer", inner, true));
        all.put("null-aware-map/" + name, Made.make("table.dataview.NullAwareMapSerializer", other, inner));
        all.put("raw/" + name, Made.make("table.runtime.typeutils.RawValueDataSerializer", inner));
        all.put("sorted-map/" + name, Made.make(
                "table.runtime.typeutils.SortedMapSerializer", new Tables.Order(1), other, inner));
        if (Made.exists(Composites.SET)) {
            all.put("set/" + name, Made.make(Composites.SET, inner));
        }
        if (Made.exists(Composites.TTL_AWARE)) {
            boolean old = side.equals("old");
            all.put("aware/" + name, Composites.aware(inner));
            all.put("aware-ttl/" + name, Composites.aware(Composites.ttl(inner)));
            all.put("aware-on/" + name, Composites.aware(old ? inner : Composites.ttl(inner)));
            all.put("aware-off/" + name, Composites.aware(old ? Composites.ttl(inner) : inner));
        }
    }
}
