package types;

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
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/** Split, union and empty list state beside two broadcast states. */
class OperatorStates extends BroadcastProcessFunction<Integer, Integer, String> implements CheckpointedFunction {
    static final MapStateDescriptor<Integer, Person> PERSONS =
            new MapStateDescriptor<>("persons", Types.INT, TypeInformation.of(Person.class));
    static final MapStateDescriptor<Place, String> NAMES =
            new MapStateDescriptor<>("names", TypeInformation.of(Place.class), Types.STRING);

    private transient ListState<Person> split;
    private transient ListState<Row> union;
    private transient List<Integer> numbers;

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        split = context.getOperatorStateStore().getListState(
                new ListStateDescriptor<>("split", TypeInformation.of(Person.class)));
        union = context.getOperatorStateStore().getUnionListState(
                new ListStateDescriptor<>("union", Samples.rowType()));
        context.getOperatorStateStore().getListState(new ListStateDescriptor<>("empty", Types.STRING));
        numbers = new ArrayList<>();
    }

    @Override
    public void processElement(Integer n, ReadOnlyContext context, Collector<String> out) {
        numbers.add(n);
    }

    @Override
    public void processBroadcastElement(Integer n, Context context, Collector<String> out) throws Exception {
        context.getBroadcastState(PERSONS).put(n, Samples.person(new Person(), n));
        context.getBroadcastState(NAMES).put(Samples.place(n), Samples.text(n));
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        List<Person> persons = new ArrayList<>();
        List<Row> rows = new ArrayList<>();
        numbers.forEach(n -> {
            persons.add(Samples.person(new Person(), n));
            rows.add(Samples.row(n));
        });
        split.update(persons);
        union.update(rows);
    }
}
