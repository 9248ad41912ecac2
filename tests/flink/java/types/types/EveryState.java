package types;

import java.time.Duration;
import java.time.Instant;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.AggregatingState;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Every kind of keyed state and both kinds of timers, with or without a time to live. */
class EveryState<K> extends KeyedProcessFunction<K, Integer, String> {
    private static final long FAR = Instant.parse("2126-01-01T00:00:00Z").toEpochMilli();

    private final boolean ttl;
    private transient ValueState<String> value;
    private transient ListState<Place> list;
    private transient MapState<Long, String> map;
    private transient MapState<Place, Tuple2<Integer, String>> composites;
    private transient ReducingState<Long> sum;
    private transient AggregatingState<Long, Double> average;

    EveryState(boolean ttl) {
        this.ttl = ttl;
    }

    @Override
    public void open(OpenContext context) {
        value = getRuntimeContext().getState(live(new ValueStateDescriptor<>("value", Types.STRING)));
        list = getRuntimeContext().getListState(live(
                new ListStateDescriptor<>("list", TypeInformation.of(Place.class))));
        map = getRuntimeContext().getMapState(live(new MapStateDescriptor<>("map", Types.LONG, Types.STRING)));
        composites = getRuntimeContext().getMapState(live(new MapStateDescriptor<>(
                "composites", TypeInformation.of(Place.class),
                Types.<Tuple2<Integer, String>>TUPLE(Types.INT, Types.STRING))));
        sum = getRuntimeContext().getReducingState(live(
                new ReducingStateDescriptor<>("sum", Long::sum, Types.LONG)));
        average = getRuntimeContext().getAggregatingState(live(new AggregatingStateDescriptor<>(
                "average", new Average(), Types.<Tuple2<Long, Long>>TUPLE(Types.LONG, Types.LONG))));
    }

    private <D extends StateDescriptor<?, ?>> D live(D descriptor) {
        if (ttl) {
            descriptor.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(36_500)).build());
        }
        return descriptor;
    }

    @Override
    public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
        value.update(Samples.text(n));
        for (int i = 0; i < n % 4; i++) {
            list.add(Samples.place(n + i));
            map.put((long) n * i, i == 2 && !ttl ? null : Samples.text(n + i));
            composites.put(Samples.place(i), Tuple2.of(n, Samples.text(i)));
        }
        sum.add(n * 10L);
        sum.add(-1L);
        average.add((long) n);
        average.add(7L);
        if (!ttl) {
            context.timerService().registerEventTimeTimer(FAR + n);
            context.timerService().registerEventTimeTimer(-n);
            context.timerService().registerProcessingTimeTimer(FAR + n * 1_000L);
        }
    }

    /** Accumulator: sum and count. */
    static final class Average implements AggregateFunction<Long, Tuple2<Long, Long>, Double> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        @Override
        public Tuple2<Long, Long> add(Long number, Tuple2<Long, Long> sum) {
            return Tuple2.of(sum.f0 + number, sum.f1 + 1);
        }

        @Override
        public Double getResult(Tuple2<Long, Long> sum) {
            return (double) sum.f0 / sum.f1;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> a, Tuple2<Long, Long> b) {
            return Tuple2.of(a.f0 + b.f0, a.f1 + b.f1);
        }
    }
}
