package compat;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** As {@link LevelSerializer}, with the method that Flink called up to 1.18: the old snapshot judges. */
public final class OldStyleSerializer extends DelegatingSerializer<Long> {
    private static final long serialVersionUID = 1;
    private final int level;

    public OldStyleSerializer(int level) {
        super(LongSerializer.INSTANCE);
        this.level = level;
    }

    @Override
    public TypeSerializer<Long> duplicate() {
        return this;
    }

    @Override
    public TypeSerializerSnapshot<Long> snapshotConfiguration() {
        return new OldStyleSerializerSnapshot(level);
    }

    /** Version 2 of the snapshot: the level; version 1 had none. */
    public static final class OldStyleSerializerSnapshot implements TypeSerializerSnapshot<Long> {
        private int level;

        public OldStyleSerializerSnapshot() {}

        OldStyleSerializerSnapshot(int level) {
            this.level = level;
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
            return new OldStyleSerializer(level);
        }

        @Override
        public TypeSerializerSchemaCompatibility<Long> resolveSchemaCompatibility(TypeSerializer<Long> now) {
            if (!(now instanceof OldStyleSerializer)) {
                return TypeSerializerSchemaCompatibility.incompatible();
            }
            int level = ((OldStyleSerializer) now).level;
            switch (level - this.level) {
                case 0:
                    return TypeSerializerSchemaCompatibility.compatibleAsIs();
                case 1:
                    return TypeSerializerSchemaCompatibility.compatibleWithReconfiguredSerializer(
                            new OldStyleSerializer(level));
                case 2:
                    return TypeSerializerSchemaCompatibility.compatibleAfterMigration();
                default:
                    return TypeSerializerSchemaCompatibility.incompatible();
            }
        }
    }
}
