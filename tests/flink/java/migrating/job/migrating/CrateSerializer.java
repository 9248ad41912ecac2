package migrating;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.CompositeTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A composite of a user, whose snapshot has outer data: a label. */
public final class CrateSerializer<T> extends UserSerializer<Crate<T>> {
    private static final long serialVersionUID = 1;
    private final String label;
    private final TypeSerializer<T> content;

    public CrateSerializer(String label, TypeSerializer<T> content) {
        this.label = label;
        this.content = content;
    }

    @Override
    public TypeSerializer<Crate<T>> duplicate() {
        return new CrateSerializer<>(label, content.duplicate());
    }

    @Override
    public int getLength() {
        return -1;
    }

    @Override
    public void serialize(Crate<T> record, DataOutputView target) throws IOException {
        target.writeInt(record.number);
        content.serialize(record.content, target);
    }

    @Override
    public Crate<T> deserialize(DataInputView source) throws IOException {
        return new Crate<>(source.readInt(), content.deserialize(source));
    }

    @Override
    Object describe() {
        return label + content;
    }

    @Override
    public TypeSerializerSnapshot<Crate<T>> snapshotConfiguration() {
        return new CrateSnapshot<>(this);
    }

    /** Outer data: the label, which stays. */
    public static final class CrateSnapshot<T> extends CompositeTypeSerializerSnapshot<Crate<T>, CrateSerializer<T>> {
        private String label;

        public CrateSnapshot() {}

        CrateSnapshot(CrateSerializer<T> serializer) {
            super(serializer);
            label = serializer.label;
        }

        @Override
        protected int getCurrentOuterSnapshotVersion() {
            return 1;
        }

        @Override
        protected void writeOuterSnapshot(DataOutputView out) throws IOException {
            out.writeUTF(label);
        }

        @Override
        protected void readOuterSnapshot(int version, DataInputView in, ClassLoader loader) throws IOException {
            label = in.readUTF();
        }

        @Override
        protected OuterSchemaCompatibility resolveOuterSchemaCompatibility(TypeSerializerSnapshot<Crate<T>> old) {
            boolean same = old instanceof CrateSnapshot && label.equals(((CrateSnapshot<?>) old).label);
            return same ? OuterSchemaCompatibility.COMPATIBLE_AS_IS : OuterSchemaCompatibility.INCOMPATIBLE;
        }

        @Override
        protected TypeSerializer<?>[] getNestedSerializers(CrateSerializer<T> outer) {
            return new TypeSerializer<?>[] {outer.content};
        }

        @Override
        @SuppressWarnings("unchecked")
        protected CrateSerializer<T> createOuterSerializerWithNestedSerializers(TypeSerializer<?>[] nested) {
            return new CrateSerializer<>(label, (TypeSerializer<T>) nested[0]);
        }
    }
}
