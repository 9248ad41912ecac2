package clusters;

import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.types.Value;
import org.apache.flink.util.Collector;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

/**
 * A slow job that gets into trouble while a file of that name is in the directory of the system property `troubles`:
 * `decline` (its snapshot throws), `async` (so does the asynchronous part), `wait` (its snapshot waits until the file
 * is gone), `fail` (a record throws).
 */
public final class TroubledJob {
    private static final long KEYS = 100;

    private TroubledJob() {}

    public static void build(StreamExecutionEnvironment env) {
        env.fromSequence(0, Long.MAX_VALUE - 1)
                .uid("numbers")
                .map(TroubledJob::pause, Types.LONG)
                .uid("pauses")
                .keyBy(n -> n % KEYS, Types.LONG)
                .process(new Counts(), Types.LONG)
                .name("counts")
                .uid("counts");
    }

    private static Long pause(Long number) throws InterruptedException {
        Thread.sleep(2);
        return number;
    }

    static boolean isAsked(String trouble) {
        Path directory = Paths.get(System.getProperty("troubles"));
        return Files.exists(directory.resolve(trouble));
    }

    /** A number that is written by this class itself, for the heap backend in the asynchronous part. */
    public static final class Count implements Value {
        public long number;

        @Override
        public void write(DataOutputView out) throws IOException {
            if (isAsked("async")) {
                throw new IOException("the disk of the upload is full");
            }
            out.writeLong(number);
        }

        @Override
        public void read(DataInputView in) throws IOException {
            number = in.readLong();
        }
    }

    private static final class Counts extends KeyedProcessFunction<Long, Long, Long> implements CheckpointedFunction {
        private transient ValueState<Count> count;
        private transient ListState<Long> snapshots;

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            count = context.getKeyedStateStore()
                    .getState(new ValueStateDescriptor<>("count", Types.VALUE(Count.class)));
            snapshots = context.getOperatorStateStore()
                    .getListState(new ListStateDescriptor<>("snapshots", Types.LONG));
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            while (isAsked("wait")) {
                Thread.sleep(20);
            }
            if (isAsked("decline")) {
                throw new IllegalStateException("the prices cannot be written");
            }
            snapshots.add(context.getCheckpointId());
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> out) throws Exception {
            if (isAsked("fail")) {
                throw new IllegalArgumentException("no price of order " + number);
            }
            Count value = count.value();
            value = value == null ? new Count() : value;
            value.number++;
            count.update(value);
        }
    }
}
