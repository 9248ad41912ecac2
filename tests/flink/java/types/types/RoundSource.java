package types;

import com.acme.orders.ReplaySource;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.core.io.InputStatus;

/** Emits from each split only as many numbers as {@link #limit} allows, so that a test can take snapshots in between. */
final class RoundSource extends ReplaySource<Integer> {
    /** How many numbers of each split may be emitted; a restored job emits none. */
    static volatile int limit;

    RoundSource(List<List<Integer>> splits) {
        super(splits);
    }

    @Override
    public SourceReader<Integer, Split> createReader(SourceReaderContext context) {
        return new Reader(super.createReader(context));
    }

    private static final class Reader implements SourceReader<Integer, Split> {
        private final SourceReader<Integer, Split> all;
        private int splits;
        private int emitted;

        Reader(SourceReader<Integer, Split> all) {
            this.all = all;
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Integer> output) throws Exception {
            if (emitted < limit * splits) {
                emitted++;
                all.pollNext(output);
            } else {
                Thread.sleep(1);
            }
            return InputStatus.MORE_AVAILABLE;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public void addSplits(List<Split> assigned) {
            splits += assigned.size();
            all.addSplits(assigned);
        }

        @Override
        public void start() {
            all.start();
        }

        @Override
        public List<Split> snapshotState(long checkpointId) {
            return all.snapshotState(checkpointId);
        }

        @Override
        public void notifyNoMoreSplits() {
            all.notifyNoMoreSplits();
        }

        @Override
        public void close() throws Exception {
            all.close();
        }
    }
}
