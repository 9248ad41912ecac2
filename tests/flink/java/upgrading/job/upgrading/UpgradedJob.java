package upgrading;

import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.util.Collector;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.UUID;

/**
 * Numbers that are added up by key, and written exactly once: to files beside the directory of the system property
 * `troubles`, which appear when the checkpoint that has them is complete.
 */
public final class UpgradedJob {
    private static final long KEYS = 20;

    private UpgradedJob() {}

    public static void build(StreamExecutionEnvironment env) {
        env.fromSequence(0, Long.MAX_VALUE - 1)
                .uid("numbers")
                .map(UpgradedJob::pause, Types.LONG)
                .uid("pauses")
                .keyBy(n -> n % KEYS, Types.LONG)
                .process(new Totals(), Types.LONG)
                .uid("totals")
                .process(new Output(), Types.LONG)
                .uid("output");
    }

    private static Long pause(Long number) throws InterruptedException {
        Thread.sleep(2);
        return number;
    }

    static final class Totals extends KeyedProcessFunction<Long, Long, Long> {
        @Override
        public void processElement(Long number, Context context, Collector<Long> out) throws Exception {
            ValueState<Total> state = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>("total", TypeInformation.of(Total.class)));
            Total total = state.value();
            total = total == null ? new Total() : total;
            total.add(number);
            state.update(total);
            out.collect(number);
        }
    }

    /** Writes the numbers between two checkpoints to one file. */
    private static final class Output extends ProcessFunction<Long, Long>
            implements CheckpointedFunction, CheckpointListener {
        private final List<String> open = new ArrayList<>();
        private final TreeMap<Long, String> pending = new TreeMap<>();
        private transient ListState<String> state;

        @Override
        public void processElement(Long number, Context context, Collector<Long> out) {
            open.add(Long.toString(number));
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            pending.put(context.getCheckpointId(), UUID.randomUUID() + "\n" + String.join("\n", open));
            open.clear();
            state.update(new ArrayList<>(pending.values()));
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            state = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("pending", Types.STRING));
            for (String each : state.get()) {
                commit(each);
            }
        }

        @Override
        public void notifyCheckpointComplete(long id) throws Exception {
            for (String each : pending.headMap(id, true).values()) {
                commit(each);
            }
            pending.headMap(id, true).clear();
        }

        private static void commit(String file) throws IOException {
            Path directory = Paths.get(System.getProperty("troubles")).resolveSibling("output");
            Files.createDirectories(directory);
            int end = file.indexOf('\n');
            Path target = directory.resolve(file.substring(0, end));
            Path written = Files.createTempFile(directory, ".", ".pending");
            Files.writeString(written, file.substring(end + 1));
            Files.move(written, target, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        }
    }
}
