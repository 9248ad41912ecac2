package harness;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import org.apache.flink.runtime.checkpoint.RoundRobinOperatorStateRepartitioner;
import org.apache.flink.runtime.state.OperatorStateHandle;
import org.apache.flink.runtime.state.OperatorStateHandle.Mode;
import org.apache.flink.runtime.state.OperatorStateHandle.StateMetaInfo;
import org.apache.flink.runtime.state.OperatorStreamStateHandle;
import org.apache.flink.runtime.state.memory.ByteStreamStateHandle;
import org.apache.flink.util.CollectionUtil;

/**
 * Hands out random operator state with Flink's own repartitioner.
 * --seed N --cases N --output FILE; FILE gets a line of JSON per case:
 * {"old": [subtask: [[name, mode, [offset...]]...] or null], "new": [subtask: [[old subtask, name, mode, [offset...]]...]]}.
 */
public final class RecordRedistribution {
    // The first six have one hash code in pairs; long ones are negative or large.
    private static final String[] NAMES = {
        "Aa", "BB", "AaAa", "BBBB", "AaBB", "BBAa", "_default_", "SourceReaderState", "offsets", "topic-partition-offset-states",
        "writer_raw_states", "rules", "Straße", "\u6d4b\u8bd5", "\ud83d\ude00", "writer-state", "b", "q", "a-rather-long-name-of-a-state"
    };

    private final Random random;

    private RecordRedistribution(long seed) {
        random = new Random(seed);
    }

    public static int run(String[] words) throws Exception {
        Args args = Args.parse(words);
        RecordRedistribution recording = new RecordRedistribution(Long.parseLong(args.get("seed")));
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(args.get("cases")); i++) {
            lines.add(recording.makeCase());
        }
        Files.write(Path.of(args.get("output")), lines);
        return 0;
    }

    private String makeCase() {
        int oldParallelism = 1 + random.nextInt(9);
        int newParallelism = 1 + random.nextInt(12);
        while (newParallelism == oldParallelism) {
            newParallelism = 1 + random.nextInt(12);
        }
        Map<String, Mode> modes = chooseStates();
        StringBuilder json = new StringBuilder("{\"old\":[");
        List<List<OperatorStateHandle>> old = new ArrayList<>();
        for (int subtask = 0; subtask < oldParallelism; subtask++) {
            json.append(subtask > 0 ? "," : "");
            if (random.nextInt(10) == 0) {
                old.add(List.of());
                json.append("null");
                continue;
            }
            // As MetadataV2V3SerializerBase reads a handle.
            List<String> names = new ArrayList<>(modes.keySet());
            java.util.Collections.shuffle(names, random);
            names.removeIf(name -> random.nextInt(8) == 0);
            Map<String, StateMetaInfo> states = CollectionUtil.newHashMapWithExpectedSize(names.size());
            List<String> written = new ArrayList<>();
            int offset = 10;
            for (String name : names) {
                Mode mode = modes.get(name);
                int number = mode == Mode.BROADCAST ? 1 : random.nextInt(4) == 0 ? 0 : random.nextInt(7);
                long[] offsets = new long[number];
                for (int i = 0; i < number; i++) {
                    offsets[i] = offset++;
                }
                StateMetaInfo info = new StateMetaInfo(offsets, mode);
                states.put(name, info);
                written.add(toJson(name, info));
            }
            json.append('[').append(String.join(",", written)).append(']');
            old.add(List.of(new OperatorStreamStateHandle(states, new ByteStreamStateHandle("" + subtask, new byte[0]))));
        }
        json.append("],\"new\":[");
        List<String> subtasks = new ArrayList<>();
        for (List<OperatorStateHandle> handles :
                RoundRobinOperatorStateRepartitioner.INSTANCE.repartitionState(old, oldParallelism, newParallelism)) {
            List<String> shares = new ArrayList<>();
            Map<Integer, OperatorStateHandle> byFile = new TreeMap<>();
            for (OperatorStateHandle handle : handles) {
                ByteStreamStateHandle file = (ByteStreamStateHandle) handle.getDelegateStateHandle();
                byFile.put(Integer.parseInt(file.getHandleName()), handle);
            }
            for (Map.Entry<Integer, OperatorStateHandle> file : byFile.entrySet()) {
                for (Map.Entry<String, StateMetaInfo> state :
                        new TreeMap<>(file.getValue().getStateNameToPartitionOffsets()).entrySet()) {
                    shares.add("[" + file.getKey() + "," + toJson(state.getKey(), state.getValue()).substring(1));
                }
            }
            subtasks.add("[" + String.join(",", shares) + "]");
        }
        return json.append(String.join(",", subtasks)).append("]}").toString();
    }

    private Map<String, Mode> chooseStates() {
        Set<String> names = new LinkedHashSet<>();
        int number = 1 + random.nextInt(random.nextInt(4) == 0 ? 30 : 5);
        while (names.size() < number) {
            names.add(random.nextBoolean() ? NAMES[random.nextInt(NAMES.length)] : "state-" + random.nextInt(1000));
        }
        Map<String, Mode> modes = new TreeMap<>();
        for (String name : names) {
            modes.put(name, random.nextInt(3) > 0 ? Mode.SPLIT_DISTRIBUTE : random.nextBoolean() ? Mode.UNION : Mode.BROADCAST);
        }
        return modes;
    }

    private static String toJson(String name, StateMetaInfo info) {
        StringBuilder offsets = new StringBuilder();
        for (long offset : info.getOffsets()) {
            offsets.append(offsets.length() > 0 ? "," : "").append(offset);
        }
        return "[\"" + name + "\"," + info.getDistributionMode().ordinal() + ",[" + offsets + "]]";
    }
}
