package types;

import com.acme.orders.ReplaySource;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Operators that are slower than the sources, so that records wait between them when a snapshot is taken. */
public final class InFlightJob {
    private static final int NUMBERS = 60;
    private static final int KEYS = 7;
    private static final int MAP_MS = 30;
    private static final int COUNT_MS = 60;

    /** How many records the sources emit altogether. */
    public static final long RECORDS = NUMBERS;

    /** When the state stays the same for so long, all records have arrived. */
    public static final long SLOW_MS = 1_000;

    private InFlightJob() {}

    public static void build(StreamExecutionEnvironment env) {
        env.fromSource(
                        new ReplaySource<>(List.of(everySecond(0), everySecond(1))),
                        WatermarkStrategy.noWatermarks(),
                        "numbers",
                        Types.INT)
                .uid("numbers")
                .rebalance()
                .map(n -> {
                    Thread.sleep(MAP_MS);
                    return n;
                }, Types.INT)
                .name("slow-map")
                .uid("slow-map")
                .keyBy(n -> n % KEYS, Types.INT)
                .process(new Sums(), Types.STRING)
                .name("slow-sums")
                .uid("slow-sums");
    }

    private static List<Integer> everySecond(int first) {
        List<Integer> numbers = new ArrayList<>();
        for (int n = first; n < NUMBERS; n += 2) {
            numbers.add(n);
        }
        return numbers;
    }

    private static final class Sums extends KeyedProcessFunction<Integer, Integer, String> {
        private transient ReducingState<Long> sum;

        @Override
        public void open(OpenContext context) {
            sum = getRuntimeContext().getReducingState(new ReducingStateDescriptor<>("sum", Long::sum, Types.LONG));
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
            Thread.sleep(COUNT_MS);
            sum.add((long) n);
        }
    }
}
