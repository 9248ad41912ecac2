package compat;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A user's serializer that takes the place of {@link LevelSerializer}: its snapshot knows the old snapshot class. */
public final class SuccessorSerializer extends DelegatingSerializer<Long> {
    private static final long serialVersionUID = 1;
    public SuccessorSerializer() {
        super(LongSerializer.INSTANCE);
    }

    @Override
    public TypeSerializer<Long> duplicate() {
        return this;
    }

    @Override
    public TypeSerializerSnapshot<Long> snapshotConfiguration() {
        return new SuccessorSerializerSnapshot();
    }

    /** A snapshot without content that accepts the old snapshots of level 2. */
    public static final class SuccessorSerializerSnapshot implements TypeSerializerSnapshot<Long> {
        @Override
        public int getCurrentVersion() {
            return 1;
        }

        @Override
        public void writeSnapshot(DataOutputView out) {}

        @Override
        public void readSnapshot(int version, DataInputView in, ClassLoader loader) {}

        @Override
        public TypeSerializer<Long> restoreSerializer() {
            return new SuccessorSerializer();
        }

        @Override
        public TypeSerializerSchemaCompatibility<Long> resolveSchemaCompatibility(TypeSerializerSnapshot<Long> old) {
            if (old instanceof SuccessorSerializerSnapshot) {
                return TypeSerializerSchemaCompatibility.compatibleAsIs();
            }
            return old instanceof LevelSerializer.LevelSerializerSnapshot
                            && ((LevelSerializer.LevelSerializerSnapshot) old).level() == 2
                    ? TypeSerializerSchemaCompatibility.compatibleAfterMigration()
                    : TypeSerializerSchemaCompatibility.incompatible();
        }
    }
}
