package com.acme.orders;

import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** Emits lists of records, one list per split, remembers how far it came, and then waits for ever. */
public class ReplaySource<T> implements Source<T, ReplaySource.Split, List<ReplaySource.Split>> {
    private final ArrayList<ArrayList<T>> records = new ArrayList<>();

    public ReplaySource(List<? extends List<T>> splits) {
        splits.forEach(split -> records.add(new ArrayList<>(split)));
    }

    /** Position in one of the lists. */
    public static class Split implements SourceSplit, Serializable {
        final int number;
        int position;

        Split(int number, int position) {
            this.number = number;
            this.position = position;
        }

        @Override
        public String splitId() {
            return Integer.toString(number);
        }
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SplitEnumerator<Split, List<Split>> createEnumerator(SplitEnumeratorContext<Split> context) {
        List<Split> all = new ArrayList<>();
        for (int number = 0; number < records.size(); number++) {
            all.add(new Split(number, 0));
        }
        return new Enumerator(context, all);
    }

    @Override
    public SplitEnumerator<Split, List<Split>> restoreEnumerator(
            SplitEnumeratorContext<Split> context, List<Split> unassigned) {
        return new Enumerator(context, unassigned);
    }

    @Override
    public SourceReader<T, Split> createReader(SourceReaderContext context) {
        return new Reader();
    }

    @Override
    public SimpleVersionedSerializer<Split> getSplitSerializer() {
        return new SplitSerializer();
    }

    @Override
    public SimpleVersionedSerializer<List<Split>> getEnumeratorCheckpointSerializer() {
        return new SplitsSerializer();
    }

    private static final class Enumerator implements SplitEnumerator<Split, List<Split>> {
        private final SplitEnumeratorContext<Split> context;
        private final List<Split> unassigned;

        Enumerator(SplitEnumeratorContext<Split> context, List<Split> unassigned) {
            this.context = context;
            this.unassigned = new ArrayList<>(unassigned);
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int subtask, String host) {}

        @Override
        public void addSplitsBack(List<Split> splits, int subtask) {
            unassigned.addAll(splits);
        }

        @Override
        public void addReader(int subtask) {
            for (Split split : new ArrayList<>(unassigned)) {
                if (split.number % context.currentParallelism() == subtask) {
                    unassigned.remove(split);
                    context.assignSplit(split, subtask);
                }
            }
        }

        @Override
        public List<Split> snapshotState(long checkpointId) {
            return new ArrayList<>(unassigned);
        }

        @Override
        public void close() {}
    }

    private final class Reader implements SourceReader<T, Split> {
        private final List<Split> splits = new ArrayList<>();
        private CompletableFuture<Void> available = new CompletableFuture<>();

        @Override
        public void start() {}

        @Override
        public InputStatus pollNext(ReaderOutput<T> output) {
            for (Split split : splits) {
                if (split.position < records.get(split.number).size()) {
                    output.collect(records.get(split.number).get(split.position++));
                    return InputStatus.MORE_AVAILABLE;
                }
            }
            available = new CompletableFuture<>();
            return InputStatus.NOTHING_AVAILABLE;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return available;
        }

        @Override
        public void addSplits(List<Split> assigned) {
            splits.addAll(assigned);
            available.complete(null);
        }

        @Override
        public List<Split> snapshotState(long checkpointId) {
            return new ArrayList<>(splits);
        }

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }

    private static final class SplitSerializer implements SimpleVersionedSerializer<Split> {
        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(Split split) {
            return ByteBuffer.allocate(8).putInt(split.number).putInt(split.position).array();
        }

        @Override
        public Split deserialize(int version, byte[] bytes) {
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            return new Split(buffer.getInt(), buffer.getInt());
        }
    }

    private static final class SplitsSerializer implements SimpleVersionedSerializer<List<Split>> {
        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(List<Split> splits) {
            ByteBuffer buffer = ByteBuffer.allocate(8 * splits.size());
            splits.forEach(split -> buffer.putInt(split.number).putInt(split.position));
            return buffer.array();
        }

        @Override
        public List<Split> deserialize(int version, byte[] bytes) throws IOException {
            List<Split> splits = new ArrayList<>();
            for (ByteBuffer buffer = ByteBuffer.wrap(bytes); buffer.hasRemaining(); ) {
                splits.add(new Split(buffer.getInt(), buffer.getInt()));
            }
            return splits;
        }
    }
}
