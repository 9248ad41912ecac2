package unknown;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A serializer of a user: text by {@code writeUTF}, then a long; its snapshot has a body of its own. */
public final class PurseSerializer extends TypeSerializer<Tuple2<String, Long>> {
    private static final long serialVersionUID = 1;

    @Override
    public boolean isImmutableType() {
        return false;
    }

    @Override
    public TypeSerializer<Tuple2<String, Long>> duplicate() {
        return this;
    }

    @Override
    public Tuple2<String, Long> createInstance() {
        return Tuple2.of("", 0L);
    }

    @Override
    public Tuple2<String, Long> copy(Tuple2<String, Long> from) {
        return Tuple2.of(from.f0, from.f1);
    }

    @Override
    public Tuple2<String, Long> copy(Tuple2<String, Long> from, Tuple2<String, Long> reuse) {
        return copy(from);
    }

    @Override
    public int getLength() {
        return -1;
    }

    @Override
    public void serialize(Tuple2<String, Long> record, DataOutputView target) throws IOException {
        target.writeUTF(record.f0);
        target.writeLong(record.f1);
    }

    @Override
    public Tuple2<String, Long> deserialize(DataInputView source) throws IOException {
        return Tuple2.of(source.readUTF(), source.readLong());
    }

    @Override
    public Tuple2<String, Long> deserialize(Tuple2<String, Long> reuse, DataInputView source) throws IOException {
        return deserialize(source);
    }

    @Override
    public void copy(DataInputView source, DataOutputView target) throws IOException {
        serialize(deserialize(source), target);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PurseSerializer;
    }

    @Override
    public int hashCode() {
        return 7;
    }

    @Override
    public TypeSerializerSnapshot<Tuple2<String, Long>> snapshotConfiguration() {
        return new PurseSnapshot();
    }

    /** Writes a text and a number that nobody but itself can tell the end of. */
    public static final class PurseSnapshot implements TypeSerializerSnapshot<Tuple2<String, Long>> {
        @Override
        public int getCurrentVersion() {
            return 4;
        }

        @Override
        public void writeSnapshot(DataOutputView out) throws IOException {
            out.writeUTF("cents of EUR");
            out.writeInt(2);
        }

        @Override
        public void readSnapshot(int version, DataInputView in, ClassLoader loader) throws IOException {
            in.readUTF();
            in.readInt();
        }

        @Override
        public TypeSerializer<Tuple2<String, Long>> restoreSerializer() {
            return new PurseSerializer();
        }

        @Override
        public TypeSerializerSchemaCompatibility<Tuple2<String, Long>> resolveSchemaCompatibility(
                TypeSerializerSnapshot<Tuple2<String, Long>> old) {
            return TypeSerializerSchemaCompatibility.compatibleAsIs();
        }
    }
}
