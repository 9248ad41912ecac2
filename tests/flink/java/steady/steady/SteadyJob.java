package steady;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** A job that changes its state all the time and never ends. */
public final class SteadyJob {
    private static final long KEYS = 200;
    private static final long SLOTS = 20;

    private SteadyJob() {}

    public static void build(StreamExecutionEnvironment env) {
        env.fromSequence(0, Long.MAX_VALUE - 1)
                .uid("numbers")
                // Slow before the shuffle: what waits in its buffers would hold up the checkpoints.
                .map(SteadyJob::pause, Types.LONG)
                .uid("pauses")
                .keyBy(n -> n % KEYS, Types.LONG)
                .process(new Counts(), Types.LONG)
                .name("counts")
                .uid("counts");
    }

    private static Long pause(Long number) throws InterruptedException {
        Thread.sleep(1);
        return number;
    }

    private static final class Counts extends KeyedProcessFunction<Long, Long, Long> {
        private transient ValueState<Long> count;
        private transient MapState<Long, Long> last;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
            last = getRuntimeContext().getMapState(new MapStateDescriptor<>("last", Types.LONG, Types.LONG));
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> out) throws Exception {
            Long before = count.value();
            count.update(before == null ? 1 : before + 1);
            last.put(number / KEYS % SLOTS, number);
        }
    }
}
