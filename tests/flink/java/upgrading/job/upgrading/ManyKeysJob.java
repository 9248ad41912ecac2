package upgrading;

import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/** Numbers that are added up for each of a million keys: as fast as it can until each key has one, then slowly. */
public final class ManyKeysJob {
    private static final long KEYS = 1_000_000;
    private static final long SPLIT = 1L << 62;

    private ManyKeysJob() {}

    public static void build(StreamExecutionEnvironment env) {
        env.fromSequence(0, Long.MAX_VALUE - 1)
                .uid("numbers")
                .map(ManyKeysJob::pause, Types.LONG)
                .uid("pauses")
                .keyBy(n -> n % KEYS, Types.LONG)
                .process(new UpgradedJob.Totals(), Types.LONG)
                .uid("totals")
                .sinkTo(new DiscardingSink<>())
                .uid("output");
    }

    private static Long pause(Long number) throws InterruptedException {
        if (number % SPLIT >= KEYS) {
            Thread.sleep(2);
        }
        return number;
    }
}
