package migrating;

import com.acme.orders.ReplaySource;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** States whose serializers, of a user and of a POJO inside of one, migrate from {@code v1} to {@code v2}. */
public final class MigratingJob {
    private static final int NUMBERS = 12;

    /** How many records the source emits. */
    public static final long RECORDS = NUMBERS;

    private MigratingJob() {}

    public static void build(StreamExecutionEnvironment env) {
        build(env, false);
    }

    static void build(StreamExecutionEnvironment env, boolean mapKeys) {
        List<Integer> all = new ArrayList<>();
        for (int n = 0; n < NUMBERS; n++) {
            all.add(n);
        }
        env.fromSource(new ReplaySource<>(List.of(all)), WatermarkStrategy.noWatermarks(), "numbers", Types.INT)
                .uid("numbers")
                .setParallelism(1)
                .keyBy(n -> "key-" + n, Types.STRING)
                .process(new Keeper(mapKeys), Types.STRING)
                .name("keeper")
                .uid("keeper");
    }

    private static final class Keeper extends KeyedProcessFunction<String, Integer, String> {
        private final boolean mapKeys;
        private final TypeInformation<Item> items = TypeInformation.of(Item.class);
        private transient ValueState<Long> counter;
        private transient ListState<Crate<Item>> crates;
        private transient MapState<String, Crate<Item>> named;
        private transient MapState<Long, String> numbered;

        Keeper(boolean mapKeys) {
            this.mapKeys = mapKeys;
        }

        @Override
        public void open(OpenContext context) {
            TypeSerializer<Long> wide = new CounterSerializer(Item.WIDTH);
            TypeSerializer<Item> pojo = getRuntimeContext().createSerializer(items);
            TypeSerializer<Crate<Item>> crate = new CrateSerializer<>("box", pojo);
            counter = getRuntimeContext().getState(new ValueStateDescriptor<>("counter", wide));
            crates = getRuntimeContext().getListState(new ListStateDescriptor<>("crates", crate));
            named = getRuntimeContext()
                    .getMapState(new MapStateDescriptor<>("named", StringSerializer.INSTANCE, crate));
            if (mapKeys) {
                numbered = getRuntimeContext()
                        .getMapState(new MapStateDescriptor<>("numbered", wide, StringSerializer.INSTANCE));
            }
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
            counter.update(-1L * n);
            crates.add(new Crate<>(n, new Item(n)));
            crates.add(new Crate<>(n + 1, null));
            named.put("full", new Crate<>(n, new Item(100L * n)));
            if (mapKeys) {
                numbered.put((long) n, "one");
                numbered.put(n - 1000L, "other");
            }
        }
    }
}
