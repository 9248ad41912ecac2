package functions;

import com.acme.orders.ReplaySource;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.KeyedBroadcastProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * A function with a broadcast state, sliding windows and an operator with raw state, over the numbers from {@code
 * functions.first} to {@code functions.end}. The watermark follows each number.
 */
public final class FunctionsJob {
    private static final int SECOND_MS = 1_000;
    private static final MapStateDescriptor<String, Long> RULES =
            new MapStateDescriptor<>("rules", Types.STRING, Types.LONG);

    /** How many records the sources emit. */
    public static long RECORDS;

    private FunctionsJob() {}

    public static void build(StreamExecutionEnvironment env) {
        ReadableConfig settings = env.getConfiguration();
        int first = settings.get(ConfigOptions.key("functions.first").intType().defaultValue(0));
        int end = settings.get(ConfigOptions.key("functions.end").intType().noDefaultValue());
        List<Integer> all = new ArrayList<>();
        for (int n = first; n < end; n++) {
            all.add(n);
        }
        RECORDS = all.size() + 1;
        DataStream<Integer> numbers = source(env, "numbers", all, false);
        numbers.keyBy(n -> "key-" + n % 5, Types.STRING)
                .connect(source(env, "rules", List.of(end), true).broadcast(RULES))
                .process(new Weigh(), Types.STRING)
                .name("weigh")
                .uid("weigh");
        numbers.keyBy(n -> n % 3, Types.INT)
                .window(SlidingEventTimeWindows.of(Duration.ofSeconds(10), Duration.ofSeconds(5)))
                .process(new Nothing(), Types.STRING)
                .name("sliding")
                .uid("sliding");
        numbers.keyBy(n -> (long) n, Types.LONG)
                .transform("raw", Types.STRING, new RawOperator())
                .uid("raw");
    }

    /** A source of one split; {@code last} says that no time of its own holds the others back. */
    private static DataStream<Integer> source(StreamExecutionEnvironment env, String uid, List<Integer> all, boolean last) {
        WatermarkStrategy<Integer> strategy = WatermarkStrategy.<Integer>forGenerator(context -> new EachNumber(last))
                .withTimestampAssigner((n, previous) -> n * (long) SECOND_MS);
        return env.fromSource(new ReplaySource<>(List.of(all)), strategy, uid, Types.INT)
                .uid(uid)
                .setParallelism(1);
    }

    /** The watermark follows each number at once. */
    private static final class EachNumber implements WatermarkGenerator<Integer> {
        private final boolean last;

        EachNumber(boolean last) {
            this.last = last;
        }

        @Override
        public void onEvent(Integer n, long timestamp, WatermarkOutput output) {
            output.emitWatermark(last ? Watermark.MAX_WATERMARK : new Watermark(timestamp - 1));
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    /** Sums numbers times the factor of the broadcast state, and counts timers that fire. */
    private static final class Weigh extends KeyedBroadcastProcessFunction<String, Integer, Integer, String> {
        private transient ValueState<Long> sum;
        private transient MapState<String, Long> counts;

        @Override
        public void open(OpenContext context) {
            sum = getRuntimeContext().getState(new ValueStateDescriptor<>("sum", Types.LONG));
            counts = getRuntimeContext().getMapState(new MapStateDescriptor<>("counts", Types.STRING, Types.LONG));
        }

        @Override
        public void processElement(Integer n, ReadOnlyContext context, Collector<String> out) throws Exception {
            long before = sum.value() == null ? 0 : sum.value();
            sum.update(before + n * context.getBroadcastState(RULES).get("factor"));
            count("numbers");
            context.timerService().registerEventTimeTimer(context.timestamp() + 4 * SECOND_MS);
        }

        @Override
        public void processBroadcastElement(Integer end, Context context, Collector<String> out) throws Exception {
            context.getBroadcastState(RULES).put("end", (long) end);
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<String> out) throws Exception {
            count("timers");
        }

        private void count(String name) throws Exception {
            counts.put(name, counts.contains(name) ? counts.get(name) + 1 : 1);
        }
    }

    private static final class Nothing extends ProcessWindowFunction<Integer, String, Integer, TimeWindow> {
        @Override
        public void process(Integer key, Context context, Iterable<Integer> numbers, Collector<String> out) {}
    }
}
