package compat;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A user's serializer with a snapshot of its own, whose level says what comes of a restore: any of the four. */
public final class LevelSerializer extends DelegatingSerializer<Long> {
    private static final long serialVersionUID = 1;
    private final int level;

    public LevelSerializer(int level) {
        super(LongSerializer.INSTANCE);
        this.level = level;
    }

    @Override
    public TypeSerializer<Long> duplicate() {
        return this;
    }

    @Override
    public TypeSerializerSnapshot<Long> snapshotConfiguration() {
        return new LevelSerializerSnapshot(level);
    }

    /** Version 2 of the snapshot: the level; version 1 had none. */
    public static final class LevelSerializerSnapshot implements TypeSerializerSnapshot<Long> {
        private int level;

        public LevelSerializerSnapshot() {}

        LevelSerializerSnapshot(int level) {
            this.level = level;
        }

        int level() {
            return level;
        }

        @Override
        public int getCurrentVersion() {
            return 2;
        }

        @Override
        public void writeSnapshot(DataOutputView out) throws IOException {
            out.writeInt(level);
        }

        @Override
        public void readSnapshot(int version, DataInputView in, ClassLoader loader) throws IOException {
            level = version == 1 ? 1 : in.readInt();
        }

        @Override
        public TypeSerializer<Long> restoreSerializer() {
            return new LevelSerializer(level);
        }

        @Override
        public TypeSerializerSchemaCompatibility<Long> resolveSchemaCompatibility(TypeSerializerSnapshot<Long> old) {
            if (!(old instanceof LevelSerializerSnapshot)) {
                return TypeSerializerSchemaCompatibility.incompatible();
            }
            switch (level - ((LevelSerializerSnapshot) old).level) {
                case 0:
                    return TypeSerializerSchemaCompatibility.compatibleAsIs();
                case 1:
                    return TypeSerializerSchemaCompatibility.compatibleWithReconfiguredSerializer(
                            new LevelSerializer(level));
                case 2:
                    return TypeSerializerSchemaCompatibility.compatibleAfterMigration();
                default:
                    return TypeSerializerSchemaCompatibility.incompatible();
            }
        }
    }
}
