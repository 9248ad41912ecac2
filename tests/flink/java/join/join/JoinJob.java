package join;

import com.acme.orders.ReplaySource;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.util.Collector;

/** Joins orders with payments: two inputs, whose rows follow from a number. */
public final class JoinJob {
    private static final int ORDERS = 60;
    private static final int PAYMENTS = 80;

    /** How many records the sources emit. */
    public static final long RECORDS = ORDERS + PAYMENTS;

    private JoinJob() {}

    public static void build(StreamExecutionEnvironment env) {
        DataStream<Integer> orders = numbers(env, "join-orders", ORDERS);
        DataStream<Integer> payments = numbers(env, "join-payments", PAYMENTS);
        orders.keyBy(n -> (long) n, Types.LONG)
                .connect(payments.keyBy(n -> (long) n, Types.LONG))
                .process(new Join(), Types.STRING)
                .name("join")
                .uid("join");
    }

    private static DataStream<Integer> numbers(StreamExecutionEnvironment env, String uid, int count) {
        List<Integer> all = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            all.add(n);
        }
        return env.fromSource(
                        new ReplaySource<>(List.of(all)),
                        WatermarkStrategy.<Integer>noWatermarks().withTimestampAssigner((n, before) -> n * 10L),
                        uid,
                        Types.INT)
                .uid(uid)
                .setParallelism(1);
    }

    /** Keeps orders, and payments that have no order yet. */
    private static final class Join extends KeyedCoProcessFunction<Long, Integer, Integer, String> {
        private transient ValueState<String> order;
        private transient ListState<Long> payments;

        @Override
        public void open(OpenContext context) {
            order = getRuntimeContext().getState(new ValueStateDescriptor<>("order", Types.STRING));
            payments = getRuntimeContext().getListState(new ListStateDescriptor<>("payments", Types.LONG));
        }

        @Override
        public void processElement1(Integer n, Context context, Collector<String> out) throws Exception {
            order.update("article " + n);
            context.timerService().registerEventTimeTimer(context.timestamp() + 1_000);
            payments.clear();
        }

        @Override
        public void processElement2(Integer n, Context context, Collector<String> out) throws Exception {
            if (order.value() == null) {
                payments.add(100L * n);
            }
        }
    }
}
