package types;

import java.time.Duration;
import java.time.Instant;
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

/**
 * Every kind of keyed state and both kinds of timers. Later rounds append to lists without reading them, overwrite, remove
 * entries of maps, clear states, write again what an earlier round cleared, and leave some keys alone.
 */
class ChangingStates extends KeyedProcessFunction<Place, Integer, String> {
    private static final long FAR = Instant.parse("2126-01-01T00:00:00Z").toEpochMilli();

    private transient ValueState<String> value;
    private transient ListState<Place> list;
    private transient MapState<Long, String> map;
    private transient ReducingState<Long> sum;
    private transient AggregatingState<Long, Double> average;
    private transient ValueState<Person> ttlValue;
    private transient ListState<String> ttlList;
    private transient MapState<String, Integer> ttlMap;

    @Override
    public void open(OpenContext context) {
        value = getRuntimeContext().getState(new ValueStateDescriptor<>("value", Types.STRING));
        list = getRuntimeContext().getListState(new ListStateDescriptor<>("list", TypeInformation.of(Place.class)));
        map = getRuntimeContext().getMapState(new MapStateDescriptor<>("map", Types.LONG, Types.STRING));
        sum = getRuntimeContext().getReducingState(new ReducingStateDescriptor<>("sum", Long::sum, Types.LONG));
        average = getRuntimeContext().getAggregatingState(new AggregatingStateDescriptor<>(
                "average", new EveryState.Average(), Types.<Tuple2<Long, Long>>TUPLE(Types.LONG, Types.LONG)));
        ttlValue = getRuntimeContext().getState(live(
                new ValueStateDescriptor<>("ttl-value", TypeInformation.of(Person.class))));
        ttlList = getRuntimeContext().getListState(live(new ListStateDescriptor<>("ttl-list", Types.STRING)));
        ttlMap = getRuntimeContext().getMapState(live(new MapStateDescriptor<>("ttl-map", Types.STRING, Types.INT)));
    }

    private static <D extends StateDescriptor<?, ?>> D live(D descriptor) {
        descriptor.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(36_500)).build());
        return descriptor;
    }

    @Override
    public void processElement(Integer record, Context context, Collector<String> out) throws Exception {
        int round = record / RoundsJob.NUMBERS;
        int n = record % RoundsJob.NUMBERS;
        switch (round == 0 ? 0 : (n + round) % 4) {
            case 0:
                write(n, round, context);
                break;
            case 1:
                change(n, round, context);
                break;
            case 2:
                clear(n, context);
                break;
            default: // left alone
        }
    }

    private void write(int n, int round, Context context) throws Exception {
        value.update(Samples.text(n + round));
        sum.add(n * 10L);
        average.add((long) n);
        ttlValue.update(Samples.person(new Person(), n + round));
        for (int i = 0; i <= n % 4; i++) {
            list.add(Samples.place(n + i));
            map.put((long) n * i, i == 2 ? null : Samples.text(n + i));
            ttlList.add(Samples.text(n + i));
            ttlMap.put(Samples.text(i), n);
        }
        context.timerService().registerEventTimeTimer(FAR + n);
        context.timerService().registerEventTimeTimer(-n);
        context.timerService().registerProcessingTimeTimer(FAR + n * 1_000L);
    }

    private void change(int n, int round, Context context) throws Exception {
        value.update("changed in round " + round);
        list.add(Samples.place(round));
        list.add(Samples.place(n * 2));
        map.remove((long) n);
        map.put(-1L - round, "new");
        sum.add(-1L);
        average.add(7L);
        ttlList.add("appended");
        ttlMap.remove(Samples.text(0));
        context.timerService().deleteEventTimeTimer(-n);
        context.timerService().registerEventTimeTimer(FAR + n + round * 100L);
    }

    private void clear(int n, Context context) throws Exception {
        value.clear();
        list.clear();
        map.clear();
        sum.clear();
        average.clear();
        ttlValue.clear();
        ttlList.clear();
        ttlMap.clear();
        context.timerService().deleteEventTimeTimer(FAR + n);
        context.timerService().deleteProcessingTimeTimer(FAR + n * 1_000L);
    }
}
