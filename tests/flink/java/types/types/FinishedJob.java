package types;

import com.acme.orders.ReplaySource;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** One of its sources comes to an end before the snapshot is taken. */
public final class FinishedJob {
    private static final int NUMBERS = 12;

    /** One checkpoint for the task that ends, and one without it. */
    public static final int ROUNDS = 2;

    /** How many records the sources emit altogether. */
    public static final long FIRST_RECORDS = 2 * NUMBERS;

    /** How many tasks end. */
    public static final long FINISHED = 1;

    private FinishedJob() {}

    /** All records come in the first round. */
    public static void open(int round) {}

    public static void build(StreamExecutionEnvironment env) {
        List<Integer> first = new ArrayList<>();
        for (int n = 0; n < NUMBERS; n++) {
            first.add(n);
        }
        DataStream<Integer> unbounded = env.fromSource(
                        new ReplaySource<>(List.of(first)), WatermarkStrategy.noWatermarks(), "unbounded", Types.INT)
                .uid("unbounded");
        DataStream<Integer> bounded = env.fromSequence(NUMBERS, 2 * NUMBERS - 1)
                .name("bounded")
                .uid("bounded")
                .setParallelism(1)
                .map(Long::intValue, Types.INT)
                .name("narrow")
                .uid("narrow")
                .setParallelism(1);
        unbounded.union(bounded)
                .keyBy(Samples::place, TypeInformation.of(Place.class))
                .process(new EveryState<>(false), Types.STRING)
                .name("state-kinds")
                .uid("state-kinds");
    }
}
