package types;

import com.acme.orders.ReplaySource;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** One small job with every type and every kind of state that canonical savepoints hold. */
public final class TypesJob {
    private static final int NUMBERS = 12;
    private static final int BROADCASTS = 4;

    /** How many records the sources emit altogether. */
    public static final long RECORDS = NUMBERS + BROADCASTS;

    private TypesJob() {}

    public static void build(StreamExecutionEnvironment env) {
        DataStream<Integer> numbers = env.fromSource(
                        new ReplaySource<>(List.of(everySecond(0, NUMBERS), everySecond(1, NUMBERS))),
                        WatermarkStrategy.<Integer>noWatermarks().withTimestampAssigner((n, previous) -> n * 7_000L),
                        "numbers",
                        Types.INT)
                .uid("numbers");
        DataStream<Integer> broadcasts = env.fromSource(
                        new ReplaySource<>(List.of(everySecond(0, BROADCASTS * 2))),
                        WatermarkStrategy.noWatermarks(),
                        "broadcasts",
                        Types.INT)
                .uid("broadcasts")
                .setParallelism(1);

        keyed(numbers, "basic-types", n -> n - 3, Types.INT, new ValueStates<>("basic-types"));
        keyed(numbers, "array-types", n -> n * -1_000_000_007L, Types.LONG, new ValueStates<>("array-types"));
        keyed(numbers, "composite-types", n -> Tuple2.of(Samples.text(n), n),
                Types.<Tuple2<String, Integer>>TUPLE(Types.STRING, Types.INT), new ValueStates<>("composite-types"));
        keyed(numbers, "state-kinds", Samples::place, TypeInformation.of(Place.class), new EveryState<>(false));
        keyed(numbers, "ttl-states", n -> "key-" + n + Samples.text(n), Types.STRING, new EveryState<>(true));

        numbers.keyBy(n -> n % 4, Types.INT)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(30)))
                .process(new Nothing(), Types.STRING)
                .name("tumbling-windows")
                .uid("tumbling-windows");
        numbers.keyBy(n -> n % 2, Types.INT)
                .window(EventTimeSessionWindows.withGap(Duration.ofSeconds(20)))
                .process(new Nothing(), Types.STRING)
                .name("session-windows")
                .uid("session-windows");
        numbers.connect(broadcasts.broadcast(OperatorStates.PERSONS, OperatorStates.NAMES))
                .process(new OperatorStates())
                .name("operator-states")
                .uid("operator-states");
    }

    private static List<Integer> everySecond(int first, int end) {
        List<Integer> numbers = new ArrayList<>();
        for (int n = first; n < end; n += 2) {
            numbers.add(n);
        }
        return numbers;
    }

    private static <K> void keyed(DataStream<Integer> numbers, String uid, KeySelector<Integer, K> key,
            TypeInformation<K> type, KeyedProcessFunction<K, Integer, String> function) {
        numbers.keyBy(key, type).process(function, Types.STRING).name(uid).uid(uid);
    }

    /** Keeps the elements of a window until it ends, which it never does. */
    static final class Nothing extends ProcessWindowFunction<Integer, String, Integer, TimeWindow> {
        @Override
        public void process(Integer key, Context context, Iterable<Integer> numbers, Collector<String> out) {}
    }
}
