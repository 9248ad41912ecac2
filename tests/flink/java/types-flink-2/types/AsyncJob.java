package types;

import com.acme.orders.ReplaySource;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.v2.ListState;
import org.apache.flink.api.common.state.v2.ListStateDescriptor;
import org.apache.flink.api.common.state.v2.MapState;
import org.apache.flink.api.common.state.v2.MapStateDescriptor;
import org.apache.flink.api.common.state.v2.ReducingState;
import org.apache.flink.api.common.state.v2.ReducingStateDescriptor;
import org.apache.flink.api.common.state.v2.ValueState;
import org.apache.flink.api.common.state.v2.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Keyed state through the asynchronous state API (state V2). */
public final class AsyncJob {
    private static final int NUMBERS = 12;

    /** How many records the sources emit altogether. */
    public static final long RECORDS = NUMBERS;

    private AsyncJob() {}

    public static void build(StreamExecutionEnvironment env) {
        List<Integer> numbers = new ArrayList<>();
        for (int n = 0; n < NUMBERS; n++) {
            numbers.add(n);
        }
        env.fromSource(new ReplaySource<>(List.of(numbers)), WatermarkStrategy.noWatermarks(), "numbers", Types.INT)
                .uid("numbers")
                .keyBy(Samples::place, TypeInformation.of(Place.class))
                .enableAsyncState()
                .process(new AsyncStates(), Types.STRING)
                .name("async-states")
                .uid("async-states");
    }

    private static final class AsyncStates extends KeyedProcessFunction<Place, Integer, String> {
        private transient ValueState<String> value;
        private transient ListState<Place> list;
        private transient MapState<Long, String> map;
        private transient ReducingState<Long> sum;

        @Override
        public void open(OpenContext context) throws Exception {
            value = getRuntimeContext().getState(new ValueStateDescriptor<>("value", Types.STRING));
            list = getRuntimeContext().getListState(new ListStateDescriptor<>("list", TypeInformation.of(Place.class)));
            map = getRuntimeContext().getMapState(new MapStateDescriptor<>("map", Types.LONG, Types.STRING));
            sum = getRuntimeContext().getReducingState(new ReducingStateDescriptor<>("sum", Long::sum, Types.LONG));
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) {
            value.asyncUpdate(Samples.text(n));
            for (int i = 0; i < n % 4; i++) {
                list.asyncAdd(Samples.place(n + i));
                map.asyncPut((long) n * i, Samples.text(n + i));
            }
            sum.asyncAdd(n * 10L);
            context.timerService().registerEventTimeTimer(n * 1_000L);
        }
    }
}
