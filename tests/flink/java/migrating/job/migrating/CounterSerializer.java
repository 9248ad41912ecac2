package migrating;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A serializer of a user: whole numbers of 4 or 8 bytes, which may become wider. */
public final class CounterSerializer extends UserSerializer<Long> {
    private static final long serialVersionUID = 1;
    private final int width;

    public CounterSerializer(int width) {
        this.width = width;
    }

    @Override
    public TypeSerializer<Long> duplicate() {
        return this;
    }

    @Override
    public int getLength() {
        return width;
    }

    @Override
    public void serialize(Long record, DataOutputView target) throws IOException {
        if (width == 4) {
            target.writeInt(Math.toIntExact(record));
        } else {
            target.writeLong(record);
        }
    }

    @Override
    public Long deserialize(DataInputView source) throws IOException {
        return width == 4 ? (long) source.readInt() : source.readLong();
    }

    @Override
    Object describe() {
        return width;
    }

    @Override
    public TypeSerializerSnapshot<Long> snapshotConfiguration() {
        return new CounterSnapshot(width);
    }

    /** The width. */
    public static final class CounterSnapshot implements TypeSerializerSnapshot<Long> {
        private int width;

        public CounterSnapshot() {}

        CounterSnapshot(int width) {
            this.width = width;
        }

        @Override
        public int getCurrentVersion() {
            return 1;
        }

        @Override
        public void writeSnapshot(DataOutputView out) throws IOException {
            out.writeInt(width);
        }

        @Override
        public void readSnapshot(int version, DataInputView in, ClassLoader loader) throws IOException {
            width = in.readInt();
        }

        @Override
        public TypeSerializer<Long> restoreSerializer() {
            return new CounterSerializer(width);
        }

        @Override
        public TypeSerializerSchemaCompatibility<Long> resolveSchemaCompatibility(TypeSerializerSnapshot<Long> old) {
            int before = old instanceof CounterSnapshot ? ((CounterSnapshot) old).width : Integer.MAX_VALUE;
            if (before == width) {
                return TypeSerializerSchemaCompatibility.compatibleAsIs();
            }
            return before < width
                    ? TypeSerializerSchemaCompatibility.compatibleAfterMigration()
                    : TypeSerializerSchemaCompatibility.incompatible();
        }
    }
}
