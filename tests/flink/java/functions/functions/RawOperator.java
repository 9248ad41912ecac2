package functions;

import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.core.memory.DataInputViewStreamWrapper;
import org.apache.flink.core.memory.DataOutputViewStreamWrapper;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyGroupStatePartitionStreamProvider;
import org.apache.flink.runtime.state.KeyedStateCheckpointOutputStream;
import org.apache.flink.runtime.state.OperatorStateCheckpointOutputStream;
import org.apache.flink.runtime.state.StateInitializationContext;
import org.apache.flink.runtime.state.StatePartitionStreamProvider;
import org.apache.flink.runtime.state.StateSnapshotContext;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/** Keeps sums by key group and a list of texts in raw state, and shows both as list states. */
final class RawOperator extends AbstractStreamOperator<String> implements OneInputStreamOperator<Integer, String> {
    private transient TreeMap<Integer, Long> sums;
    private transient List<String> texts;
    private transient ListState<String> shownSums;
    private transient ListState<String> shownTexts;

    /** Raw keyed state is that of this operator, not of timers. */
    @Override
    protected boolean isUsingCustomRawKeyedState() {
        return true;
    }

    @Override
    public void initializeState(StateInitializationContext context) throws Exception {
        super.initializeState(context);
        sums = new TreeMap<>();
        texts = new ArrayList<>();
        for (KeyGroupStatePartitionStreamProvider each : context.getRawKeyedStateInputs()) {
            try (InputStream stream = each.getStream()) {
                sums.put(each.getKeyGroupId(), new DataInputViewStreamWrapper(stream).readLong());
            }
        }
        for (StatePartitionStreamProvider each : context.getRawOperatorStateInputs()) {
            try (InputStream stream = each.getStream()) {
                texts.add(new DataInputViewStreamWrapper(stream).readUTF());
            }
        }
        shownSums = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("sums", Types.STRING));
        shownTexts = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("texts", Types.STRING));
    }

    @Override
    public void processElement(StreamRecord<Integer> record) {
        int n = record.getValue();
        int maxParallelism = getRuntimeContext().getTaskInfo().getMaxNumberOfParallelSubtasks();
        sums.merge(KeyGroupRangeAssignment.assignToKeyGroup(getCurrentKey(), maxParallelism), (long) n, Long::sum);
        if (n % 2 == 0) {
            texts.add("number " + n);
        }
    }

    @Override
    public void snapshotState(StateSnapshotContext context) throws Exception {
        super.snapshotState(context);
        shownSums.clear();
        shownTexts.clear();
        KeyedStateCheckpointOutputStream keyed = context.getRawKeyedOperatorStateOutput();
        for (int keyGroup : keyed.getKeyGroupList()) {
            if (sums.containsKey(keyGroup)) {
                keyed.startNewKeyGroup(keyGroup);
                new DataOutputViewStreamWrapper(keyed).writeLong(sums.get(keyGroup));
                shownSums.add(keyGroup + ": " + sums.get(keyGroup));
            }
        }
        OperatorStateCheckpointOutputStream partitions = context.getRawOperatorStateOutput();
        for (String text : texts) {
            partitions.startNewPartition();
            new DataOutputViewStreamWrapper(partitions).writeUTF(text);
            shownTexts.add(text);
        }
    }
}
