package harness;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.flink.api.common.state.AggregatingState;
import org.apache.flink.api.common.state.BroadcastState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.CheckpointableKeyedStateBackend;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.KeyedStateBackend;
import org.apache.flink.runtime.state.OperatorStateBackend;
import org.apache.flink.runtime.state.OperatorStateHandle;
import org.apache.flink.runtime.state.PartitionableListState;
import org.apache.flink.runtime.state.internal.InternalAppendingState;
import org.apache.flink.runtime.state.internal.InternalKvState;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.InternalTimer;
import org.apache.flink.util.CloseableIterator;

/** The state of one subtask of a running operator, read through the state API, as JSON lines. Call it in the task's thread. */
final class OperatorEntries {
    private final String uid;
    private final AbstractStreamOperator<?> operator;
    private final int subtask;
    private final boolean restored;
    private final List<String> lines = new ArrayList<>();

    OperatorEntries(String uid, AbstractStreamOperator<?> operator, int subtask, boolean restored) {
        this.uid = uid;
        this.operator = operator;
        this.subtask = subtask;
        this.restored = restored;
    }

    List<String> read() throws Exception {
        if (Reflection.field(operator, "stateHandler") == null) {
            return lines; // had ended before the snapshot was taken
        }
        KeyedStateBackend<?> keyed = keyedBackend();
        if (keyed != null) {
            readKeyed(keyed);
        }
        OperatorStateBackend backend = operator.getOperatorStateBackend();
        if (backend != null) {
            readLists(backend);
            readBroadcasts(backend);
        }
        return lines;
    }

    /** The backend of the operator; that of an operator with asynchronous state (Flink 2) lies behind an adaptor. */
    private KeyedStateBackend<?> keyedBackend() throws Exception {
        Object handler = Reflection.field(operator, "stateHandler");
        if (operator.getKeyedStateBackend() != null || !Reflection.hasField(handler, "asyncKeyedStateBackend")) {
            return operator.getKeyedStateBackend();
        }
        Object adaptor = Reflection.field(handler, "asyncKeyedStateBackend");
        return adaptor == null ? null : (KeyedStateBackend<?>) Reflection.field(adaptor, "keyedStateBackend");
    }

    private JsonObject line(String kind) {
        return new JsonObject().put("kind", kind).put("op", uid);
    }

    private void emit(JsonObject line) {
        lines.add(line.put("subtask", subtask).toString());
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private void readKeyed(KeyedStateBackend backend) throws Exception {
        Map<String, InternalKvState> states =
                new TreeMap<>((Map<String, InternalKvState>) Reflection.field(backend, "keyValueStatesByName"));
        for (Map.Entry<String, InternalKvState> state : states.entrySet()) {
            Set<Tuple2> keys = new LinkedHashSet<>();
            try (Stream<Tuple2> all = backend.getKeysAndNamespaces(state.getKey())) {
                all.forEach(key -> keys.add(Tuple2.of(key.f0, key.f1)));
            }
            for (Tuple2 key : keys) {
                if (!isOfSubtask(backend, keyGroup(key.f0))) {
                    emit(keyedLine(state.getKey(), state.getValue(), key).put("unreachable", true));
                    continue;
                }
                backend.setCurrentKey(key.f0);
                state.getValue().setCurrentNamespace(key.f1);
                readEntry(state.getKey(), state.getValue(), key);
            }
        }
        readTimers(backend);
    }

    private int keyGroup(Object key) {
        return KeyGroupRangeAssignment.assignToKeyGroup(
                key, operator.getRuntimeContext().getTaskInfo().getMaxNumberOfParallelSubtasks());
    }

    /** Whether Flink looks for this key group here: another job's key groups or hashes would put a key elsewhere. */
    private static boolean isOfSubtask(KeyedStateBackend<?> backend, int keyGroup) {
        return ((CheckpointableKeyedStateBackend<?>) backend).getKeyGroupRange().contains(keyGroup);
    }

    private JsonObject keyedLine(String name, Object state, Tuple2<?, ?> key) {
        return line("keyed").put("state", name).put("type", type(state))
                .put("kg", keyGroup(key.f0))
                .put("key", key.f0).put("ns", key.f1);
    }

    private void readEntry(String name, Object state, Tuple2<?, ?> key) throws Exception {
        if (state instanceof MapState) {
            for (Map.Entry<?, ?> entry : ((MapState<?, ?>) state).entries()) {
                emit(keyedLine(name, state, key).put("ukey", entry.getKey()).put("value", entry.getValue()));
            }
            return;
        }
        Object value;
        if (state instanceof ValueState) {
            value = ((ValueState<?>) state).value();
        } else if (state instanceof ListState) {
            List<Object> list = new ArrayList<>();
            Iterable<?> elements = ((ListState<?>) state).get();
            if (elements != null) {
                elements.forEach(list::add);
            }
            value = list.isEmpty() ? null : list;
        } else {
            value = ((InternalAppendingState<?, ?, ?, ?, ?>) state).getInternal(); // accumulator, not the result
        }
        if (value != null) {
            emit(keyedLine(name, state, key).put("value", value));
        }
    }

    private static String type(Object state) {
        if (state instanceof ValueState) {
            return "VALUE";
        } else if (state instanceof MapState) {
            return "MAP";
        } else if (state instanceof ListState) {
            return "LIST";
        } else if (state instanceof ReducingState) {
            return "REDUCING";
        } else if (state instanceof AggregatingState) {
            return "AGGREGATING";
        }
        throw new IllegalArgumentException(state.getClass().getName());
    }

    private void readTimers(KeyedStateBackend<?> backend) throws Exception {
        Object manager = Reflection.field(operator, "timeServiceManager");
        if (manager == null) {
            return;
        }
        for (Map.Entry<?, ?> service : ((Map<?, ?>) Reflection.field(manager, "timerServices")).entrySet()) {
            readQueue(backend, service, "event", "eventTimeTimersQueue");
            readQueue(backend, service, "processing", "processingTimeTimersQueue");
        }
    }

    private void readQueue(KeyedStateBackend<?> backend, Map.Entry<?, ?> service, String domain, String field)
            throws Exception {
        KeyGroupedInternalPriorityQueue<?> queue =
                (KeyGroupedInternalPriorityQueue<?>) Reflection.field(service.getValue(), field);
        rewind(queue);
        try (CloseableIterator<?> timers = queue.iterator()) {
            while (timers.hasNext()) {
                InternalTimer<?, ?> timer = (InternalTimer<?, ?>) timers.next();
                int keyGroup = keyGroup(timer.getKey());
                JsonObject line = line("timer").put("service", service.getKey()).put("domain", domain)
                        .put("kg", keyGroup)
                        .put("key", timer.getKey()).put("ns", timer.getNamespace()).put("ts", timer.getTimestamp());
                if (!isOfSubtask(backend, keyGroup) || !queue.getSubsetForKeyGroup(keyGroup).contains(timer)) {
                    line.put("unreachable", true);
                }
                emit(line);
            }
        }
    }

    /**
     * Lets the iterator of a queue in RocksDB begin with the first timer. It begins after {@code seekHint}, the timer that
     * was removed last when none was left, and so leaves out earlier timers that were added since.
     */
    private static void rewind(Object queue) throws ReflectiveOperationException {
        if (!Reflection.hasField(queue, "keyGroupedHeaps")) {
            return;
        }
        for (Object ofKeyGroup : (Object[]) Reflection.field(queue, "keyGroupedHeaps")) {
            if (Reflection.hasField(ofKeyGroup, "seekHint")) {
                Reflection.set(ofKeyGroup, "seekHint", Reflection.field(ofKeyGroup, "groupPrefixBytes"));
            }
        }
    }

    private void readLists(OperatorStateBackend backend) throws Exception {
        Map<?, ?> states = (Map<?, ?>) Reflection.field(backend, "registeredOperatorStates");
        for (Map.Entry<?, ?> entry : states.entrySet()) {
            PartitionableListState<?> state = (PartitionableListState<?>) entry.getValue();
            OperatorStateHandle.Mode mode = state.getStateMetaInfo().getAssignmentMode();
            if (restored && mode == OperatorStateHandle.Mode.UNION && subtask > 0) {
                continue; // a restore gives the whole union to every subtask
            }
            for (Object value : state.get()) {
                emit(line("operator").put("state", entry.getKey()).put("mode", mode.name()).put("value", value));
            }
        }
    }

    private void readBroadcasts(OperatorStateBackend backend) throws Exception {
        Map<?, ?> states = (Map<?, ?>) Reflection.field(backend, "registeredBroadcastStates");
        for (Map.Entry<?, ?> state : states.entrySet()) {
            for (Map.Entry<?, ?> entry : ((BroadcastState<?, ?>) state.getValue()).entries()) {
                emit(line("broadcast").put("state", state.getKey()).put("ukey", entry.getKey())
                        .put("value", entry.getValue()));
            }
        }
    }
}
