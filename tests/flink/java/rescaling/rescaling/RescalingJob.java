package rescaling;

import com.acme.orders.ReplaySource;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Keeps the same kinds of state below keys of many types, and operator state of every kind.
 * Settings: {@code rescaling.first} and {@code rescaling.keys} (which numbers become keys; jobs with other numbers
 * have no key in common), {@code rescaling.operators} (which of {@link #OPERATORS} there are; all by default),
 * {@code rescaling.uids} (new uids: {@code old:new,...}), {@code rescaling.wrong-hash}
 * (see {@link Place}).
 */
public final class RescalingJob {
    /** The operators, by the uids that they have where nothing else is said. */
    public static final List<String> OPERATORS = List.of(
            "string", "long", "integer", "tuple", "row", "pojo-objects", "pojo-ide", "pojo-lombok", "pojo-nested",
            "record", "tuple-of-pojo", "row-data", "string-windows", "pojo-sessions", "row-data-windows",
            "operator-states");

    /** How many records the sources emit altogether; known when the job is built. */
    public static long RECORDS;

    private final ReadableConfig settings;
    private final DataStream<Integer> numbers;

    private RescalingJob(ReadableConfig settings, DataStream<Integer> numbers) {
        this.settings = settings;
        this.numbers = numbers;
    }

    public static void build(StreamExecutionEnvironment env) {
        ReadableConfig settings = env.getConfiguration();
        Place.wrongHash = settings.get(ConfigOptions.key("rescaling.wrong-hash").booleanType().defaultValue(false));
        int first = settings.get(ConfigOptions.key("rescaling.first").intType().defaultValue(0));
        int end = first + settings.get(ConfigOptions.key("rescaling.keys").intType().defaultValue(300));
        DataStream<Integer> numbers = source(
                env, "numbers", List.of(everySecond(first, end), everySecond(first + 1, end)), env.getParallelism());
        List<Integer> broadcasts = everySecond(first, first + 12);
        RescalingJob job = new RescalingJob(settings, numbers);
        job.addKeyed();
        job.addWindows();
        RECORDS = end - first;
        if (job.has("operator-states")) {
            RECORDS += broadcasts.size();
            job.name("operator-states", numbers
                    .connect(source(env, "broadcasts", List.of(broadcasts), 1)
                            .broadcast(OperatorStates.PLACES, OperatorStates.NAMES))
                    .process(new OperatorStates()));
        }
    }

    private static DataStream<Integer> source(
            StreamExecutionEnvironment env, String uid, List<List<Integer>> splits, int parallelism) {
        return env.fromSource(
                        new ReplaySource<>(splits),
                        WatermarkStrategy.<Integer>noWatermarks().withTimestampAssigner((n, previous) -> n * 7_000L),
                        uid,
                        Types.INT)
                .uid(uid)
                .setParallelism(parallelism);
    }

    private static List<Integer> everySecond(int first, int end) {
        List<Integer> found = new ArrayList<>();
        for (int n = first; n < end; n += 2) {
            found.add(n);
        }
        return found;
    }

    private boolean has(String uid) {
        return settings.get(ConfigOptions.key("rescaling.operators").stringType().asList().defaultValues(
                OPERATORS.toArray(new String[0]))).contains(uid);
    }

    private void name(String uid, SingleOutputStreamOperator<?> operator) {
        Map<String, String> uids =
                settings.get(ConfigOptions.key("rescaling.uids").mapType().defaultValue(Map.of()));
        operator.name(uids.getOrDefault(uid, uid)).uid(uids.getOrDefault(uid, uid));
    }

    private void addKeyed() {
        for (Keys<?> keys : Keys.ALL) {
            if (has(keys.uid)) {
                add(keys);
            }
        }
        if (has("row-data")) {
            name("row-data", Tables.keyed(numbers)
                    .process(new KeyedStates<>(Tables.VALUES, Tables::value), Types.STRING));
        }
    }

    private <K> void add(Keys<K> keys) {
        name(keys.uid, keys.of(numbers).process(new KeyedStates<>(Types.STRING, Keys::text), Types.STRING));
    }

    private void addWindows() {
        if (has("string-windows")) {
            name("string-windows", tumbling(Keys.STRING.of(numbers)));
        }
        if (has("pojo-sessions")) {
            name("pojo-sessions", Keys.POJO_IDE.of(numbers)
                    .window(EventTimeSessionWindows.withGap(Duration.ofSeconds(20)))
                    .process(new Nothing<>(), Types.STRING));
        }
        if (has("row-data-windows")) {
            name("row-data-windows", tumbling(Tables.keyed(numbers)));
        }
    }

    private static <K> SingleOutputStreamOperator<String> tumbling(KeyedStream<Integer, K> keyed) {
        return keyed.window(TumblingEventTimeWindows.of(Duration.ofSeconds(30)))
                .process(new Nothing<>(), Types.STRING);
    }

    /** Keeps the elements of a window until it ends, which it never does. */
    private static final class Nothing<K> extends ProcessWindowFunction<Integer, String, K, TimeWindow> {
        @Override
        public void process(K key, Context context, Iterable<Integer> numbers, Collector<String> out) {}
    }
}
