package types;

import java.time.Instant;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** The rounds of {@link RoundsJob} with few states: RocksDB writes 5 kB of options per state into every checkpoint. */
public final class FewStatesJob {
    public static final int ROUNDS = RoundsJob.ROUNDS;
    public static final long RECORDS = RoundsJob.RECORDS;

    private FewStatesJob() {}

    /** Lets the source emit the numbers of a round. */
    public static void open(int round) {
        RoundsJob.open(round);
    }

    public static void build(StreamExecutionEnvironment env) {
        DataStream<Integer> numbers = RoundsJob.rounds(env);
        numbers.keyBy(n -> "key-" + n % RoundsJob.NUMBERS, Types.STRING)
                .process(new FewStates(), Types.STRING)
                .name("few-states")
                .uid("few-states");
    }

    private static final class FewStates extends KeyedProcessFunction<String, Integer, String> {
        private static final long FAR = Instant.parse("2126-01-01T00:00:00Z").toEpochMilli();

        private transient ValueState<String> value;
        private transient ListState<Place> list;
        private transient MapState<Long, String> map;

        @Override
        public void open(OpenContext context) {
            value = getRuntimeContext().getState(new ValueStateDescriptor<>("value", Types.STRING));
            list = getRuntimeContext().getListState(new ListStateDescriptor<>("list", TypeInformation.of(Place.class)));
            map = getRuntimeContext().getMapState(new MapStateDescriptor<>("map", Types.LONG, Types.STRING));
        }

        @Override
        public void processElement(Integer record, Context context, Collector<String> out) throws Exception {
            int round = record / RoundsJob.NUMBERS;
            int n = record % RoundsJob.NUMBERS;
            switch (round == 0 ? 0 : (n + round) % 4) {
                case 0:
                    value.update(Samples.text(n + round));
                    for (int i = 0; i <= n % 3; i++) {
                        list.add(Samples.place(n + i));
                        map.put((long) n * i, i == 2 ? null : Samples.text(n + i));
                    }
                    context.timerService().registerEventTimeTimer(n);
                    context.timerService().registerProcessingTimeTimer(FAR + n);
                    break;
                case 1:
                    list.add(Samples.place(n * round));
                    map.remove((long) n);
                    map.put(-1L - round, "new");
                    context.timerService().deleteEventTimeTimer(n);
                    break;
                case 2:
                    value.clear();
                    list.clear();
                    map.clear();
                    context.timerService().deleteProcessingTimeTimer(FAR + n);
                    break;
                default: // left alone
            }
        }
    }
}
