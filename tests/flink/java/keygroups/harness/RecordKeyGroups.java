package harness;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Random;
import keygroups.Samples;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;

/**
 * Writes keys of many types with what Flink makes of them.
 *
 * <p>Lines of the output: {@code S type hex} the snapshot of the serializer, {@code K type hex hash max group} a key as
 * the serializer writes it, its {@code hashCode}, a max parallelism and the key group, {@code R parallelism max subtask
 * start end} the key groups of a subtask, {@code D parallelism max} the default max parallelism.
 */
public final class RecordKeyGroups {
    public static int run(String[] words) throws Exception {
        java.util.Map<String, String> args = new java.util.TreeMap<>();
        for (int i = 0; i + 1 < words.length; i += 2) {
            args.put(words[i].substring(2), words[i + 1]);
        }
        long seed = Long.parseLong(args.get("seed"));
        int count = Integer.parseInt(args.get("count"));
        Path output = Paths.get(args.get("output"));
        StringBuilder lines = new StringBuilder();
        new Samples(seed, count, lines).write();
        Random random = new Random(seed);
        for (int i = 0; i < 1000; i++) {
            int max = 1 + random.nextInt(random.nextBoolean() ? 200 : 32768);
            int parallelism = 1 + random.nextInt(max);
            int subtask = random.nextInt(parallelism);
            KeyGroupRange range =
                    KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex(max, parallelism, subtask);
            lines.append("R\t" + parallelism + "\t" + max + "\t" + subtask + "\t" + range.getStartKeyGroup() + "\t"
                    + range.getEndKeyGroup() + "\n");
            lines.append("D\t" + parallelism + "\t"
                    + KeyGroupRangeAssignment.computeDefaultMaxParallelism(parallelism) + "\n");
        }
        Files.writeString(output, lines);
        return 0;
    }
}
