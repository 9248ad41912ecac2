package com.acme.orders;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.util.Collector;

/** Counts events per status and remembers returns until somebody looks at them. */
class OrderCounter extends ProcessFunction<OrderEvent, String> implements CheckpointedFunction {
    private transient ListState<String> returnsState;
    private transient ListState<Tuple2<String, Long>> countsState;
    private transient List<String> returns;
    private transient Map<String, Long> counts;

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        returnsState = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("returns", Types.STRING));
        countsState = context.getOperatorStateStore().getUnionListState(
                new ListStateDescriptor<>("counts", Types.<Tuple2<String, Long>>TUPLE(Types.STRING, Types.LONG)));
        returns = new ArrayList<>();
        counts = new TreeMap<>();
        returnsState.get().forEach(returns::add);
        if (getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() == 0) {
            // every subtask sees the whole union; the first one carries the sums on
            countsState.get().forEach(count -> counts.merge(count.f0, count.f1, Long::sum));
        }
    }

    @Override
    public void processElement(OrderEvent event, Context context, Collector<String> out) {
        counts.merge(event.status.name(), 1L, Long::sum);
        if (event.quantity < 0) {
            returns.add(event.orderId);
        }
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        returnsState.update(returns);
        List<Tuple2<String, Long>> all = new ArrayList<>();
        counts.forEach((status, count) -> all.add(Tuple2.of(status, count)));
        countsState.update(all);
    }
}
