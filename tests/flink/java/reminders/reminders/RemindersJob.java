package reminders;

import com.acme.orders.ReplaySource;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Sets a timer, deletes it, and sets an earlier one for the same key. */
public final class RemindersJob {
    private static final List<Long> TIMES = List.of(300L, -300L, 100L);

    /** How many records the source emits. */
    public static final long RECORDS = TIMES.size();

    private RemindersJob() {}

    public static void build(StreamExecutionEnvironment env) {
        env.fromSource(
                        new ReplaySource<>(List.of(TIMES)),
                        WatermarkStrategy.noWatermarks(),
                        "reminder-source",
                        Types.LONG)
                .uid("reminder-source")
                .setParallelism(1)
                .keyBy(time -> "key", Types.STRING)
                .process(new Reminders(), Types.STRING)
                .name("reminders")
                .uid("reminders");
    }

    /** Sets a timer at a time, and deletes that of a negative one. */
    private static final class Reminders extends KeyedProcessFunction<String, Long, String> {
        @Override
        public void processElement(Long time, Context context, Collector<String> out) {
            if (time < 0) {
                context.timerService().deleteEventTimeTimer(-time);
            } else {
                context.timerService().registerEventTimeTimer(time);
            }
        }
    }
}
