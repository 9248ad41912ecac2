package rescaling;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.co.BroadcastProcessFunction;
import org.apache.flink.util.Collector;

/** Split lists of several lengths (one of them only in the first subtask), a union list and two broadcast states. */
final class OperatorStates extends BroadcastProcessFunction<Integer, Integer, String> implements CheckpointedFunction {
    static final MapStateDescriptor<Integer, Place> PLACES =
            new MapStateDescriptor<>("places", Types.INT, TypeInformation.of(Place.class));
    static final MapStateDescriptor<String, Long> NAMES =
            new MapStateDescriptor<>("names", Types.STRING, Types.LONG);

    private transient ListState<Place> many;
    private transient ListState<String> few;
    private transient ListState<Long> uneven;
    private transient ListState<Place> union;
    private transient List<Integer> numbers;

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        many = context.getOperatorStateStore().getListState(
                new ListStateDescriptor<>("many", TypeInformation.of(Place.class)));
        few = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("few", Types.STRING));
        uneven = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("uneven", Types.LONG));
        union = context.getOperatorStateStore().getUnionListState(
                new ListStateDescriptor<>("union", TypeInformation.of(Place.class)));
        context.getOperatorStateStore().getListState(new ListStateDescriptor<>("empty", Types.STRING));
        numbers = new ArrayList<>();
    }

    @Override
    public void processElement(Integer n, ReadOnlyContext context, Collector<String> out) {
        numbers.add(n);
    }

    @Override
    public void processBroadcastElement(Integer n, Context context, Collector<String> out) throws Exception {
        context.getBroadcastState(PLACES).put(n, Place.of(n));
        context.getBroadcastState(NAMES).put(Keys.text(n), (long) -n);
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        many.clear();
        few.clear();
        uneven.clear();
        union.clear();
        for (int n : numbers) {
            if (n % 3 == 0) {
                many.add(Place.of(n));
            }
            if (n % 11 == 0) {
                few.add(Keys.text(n));
            }
            if (n % 4 == 0) {
                uneven.add(n * 1_000_000_007L);
            }
            if (n % 9 == 0) {
                union.add(Place.of(n));
            }
        }
    }
}
