package unknown;

import com.acme.orders.ReplaySource;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.streaming.api.functions.co.BroadcastProcessFunction;
import org.apache.flink.util.Collector;

/** Five operators with state of every kind; one of them has a serializer that only its own class reads. */
public final class UnknownJob {
    private static final int NUMBERS = 12;
    private static final List<Integer> BROADCASTS = List.of(1, 2, 3);
    private static final MapStateDescriptor<Integer, String> RATES =
            new MapStateDescriptor<>("rates", Types.INT, Types.STRING);

    /** How many records the sources emit. */
    public static final long RECORDS = NUMBERS + BROADCASTS.size();

    private UnknownJob() {}

    public static void build(StreamExecutionEnvironment env) {
        List<Integer> even = new ArrayList<>();
        List<Integer> odd = new ArrayList<>();
        for (int n = 0; n < NUMBERS; n++) {
            (n % 2 == 0 ? even : odd).add(n);
        }
        DataStream<Integer> numbers = env.fromSource(
                        new ReplaySource<>(List.of(even, odd)), WatermarkStrategy.noWatermarks(), "numbers", Types.INT)
                .uid("numbers");
        DataStream<Integer> rates = env.fromSource(
                        new ReplaySource<>(List.of(BROADCASTS)), WatermarkStrategy.noWatermarks(), "changes", Types.INT)
                .uid("changes")
                .setParallelism(1);
        numbers.keyBy(n -> "key-" + n, Types.STRING).process(new Tallies(), Types.STRING).name("tallies").uid("tallies");
        numbers.keyBy(n -> "key-" + n, Types.STRING).process(new Purses(), Types.STRING).name("purses").uid("purses");
        numbers.process(new Numbers(false), Types.STRING).name("log").uid("log");
        numbers.process(new Numbers(true), Types.STRING).name("offsets").uid("offsets");
        numbers.connect(rates.broadcast(RATES)).process(new Rates(), Types.STRING).name("rates").uid("rates");
    }

    private static final class Tallies extends KeyedProcessFunction<String, Integer, String> {
        private static final long FAR = Instant.parse("2126-01-01T00:00:00Z").toEpochMilli();

        private transient ValueState<Long> tally;
        private transient ListState<Integer> seen;
        private transient MapState<String, Double> shares;

        @Override
        public void open(OpenContext context) {
            tally = getRuntimeContext().getState(new ValueStateDescriptor<>("tally", Types.LONG));
            seen = getRuntimeContext().getListState(new ListStateDescriptor<>("seen", Types.INT));
            shares = getRuntimeContext().getMapState(new MapStateDescriptor<>("shares", Types.STRING, Types.DOUBLE));
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
            tally.update(100L + n);
            seen.add(n);
            seen.add(-n);
            shares.put("share-" + n, n / 4.0);
            context.timerService().registerProcessingTimeTimer(FAR + n);
        }
    }

    private static final class Purses extends KeyedProcessFunction<String, Integer, String> {
        private transient ValueState<Tuple2<String, Long>> purse;
        private transient ValueState<Integer> visits;

        @Override
        public void open(OpenContext context) {
            purse = getRuntimeContext().getState(new ValueStateDescriptor<>("purse", new PurseSerializer()));
            visits = getRuntimeContext().getState(new ValueStateDescriptor<>("visits", Types.INT));
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
            purse.update(Tuple2.of("purse-" + n + "-\u20ac", 1000L * n));
            visits.update(n + 1);
        }
    }

    private static final class Numbers extends ProcessFunction<Integer, String> implements CheckpointedFunction {
        private final boolean union;

        private transient ListState<Integer> state;
        private transient List<Integer> numbers;

        Numbers(boolean union) {
            this.union = union;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            ListStateDescriptor<Integer> descriptor = new ListStateDescriptor<>("numbers", Types.INT);
            state = union
                    ? context.getOperatorStateStore().getUnionListState(descriptor)
                    : context.getOperatorStateStore().getListState(descriptor);
            numbers = new ArrayList<>();
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) {
            numbers.add(n);
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            state.update(numbers);
        }
    }

    private static final class Rates extends BroadcastProcessFunction<Integer, Integer, String> {
        @Override
        public void processElement(Integer n, ReadOnlyContext context, Collector<String> out) {}

        @Override
        public void processBroadcastElement(Integer n, Context context, Collector<String> out) throws Exception {
            context.getBroadcastState(RATES).put(n, "rate " + n);
        }
    }
}
