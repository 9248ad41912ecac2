package types;

import com.acme.orders.ReplaySource;
import java.time.Duration;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.ReduceFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;

/** Session windows of numbers by one key or another: a number is also its time, in seconds. */
public class SessionsJob {
    private static final List<Integer> FIRST = List.of(0, 13, 26, 60, 95, 101, 150, 158, 166, 240, 300, 307);
    private static final List<Integer> SECOND = List.of(7, 20, 41, 68, 98, 110, 151, 175, 190, 249, 311, 330);

    /** How many records the source emits. */
    public static final long RECORDS = 24;

    protected SessionsJob() {}

    protected static void build(StreamExecutionEnvironment env, int keys) {
        DataStream<Integer> numbers = env.fromSource(
                        new ReplaySource<>(List.of(FIRST, SECOND)),
                        WatermarkStrategy.<Integer>noWatermarks().withTimestampAssigner((n, previous) -> n * 1_000L),
                        "numbers",
                        Types.INT)
                .uid("numbers");
        numbers.keyBy(n -> n % keys, Types.INT)
                .window(EventTimeSessionWindows.withGap(Duration.ofSeconds(10)))
                .allowedLateness(Duration.ofSeconds(5))
                .reduce((ReduceFunction<Integer>) Integer::sum)
                .name("sums")
                .uid("sums");
        numbers.keyBy(n -> n % keys, Types.INT)
                .window(EventTimeSessionWindows.withGap(Duration.ofSeconds(10)))
                .process(new TypesJob.Nothing(), Types.STRING)
                .name("lists")
                .uid("lists");
    }

    /** By six keys. */
    public static final class Fine extends SessionsJob {
        public static final long RECORDS = SessionsJob.RECORDS;

        public static void build(StreamExecutionEnvironment env) {
            build(env, 6);
        }
    }

    /** By two keys. */
    public static final class Coarse extends SessionsJob {
        public static final long RECORDS = SessionsJob.RECORDS;

        public static void build(StreamExecutionEnvironment env) {
            build(env, 2);
        }
    }
}
