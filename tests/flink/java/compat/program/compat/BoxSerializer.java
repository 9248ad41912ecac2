package compat;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.CompositeTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A user's composite serializer with outer data, a unit: one more migrates, anything else does not fit. */
@SuppressWarnings({"rawtypes", "unchecked"})
public final class BoxSerializer extends DelegatingSerializer<Object> {
    private static final long serialVersionUID = 1;
    private final int unit;

    public BoxSerializer(int unit, TypeSerializer inner) {
        super(inner);
        this.unit = unit;
    }

    @Override
    public TypeSerializer<Object> duplicate() {
        return new BoxSerializer(unit, inner.duplicate());
    }

    @Override
    public TypeSerializerSnapshot<Object> snapshotConfiguration() {
        return new BoxSerializerSnapshot(this);
    }

    /** Outer data of version 3: the unit. */
    public static final class BoxSerializerSnapshot extends CompositeTypeSerializerSnapshot<Object, BoxSerializer> {
        private int unit;

        public BoxSerializerSnapshot() {
            super(BoxSerializer.class);
        }

        BoxSerializerSnapshot(BoxSerializer serializer) {
            super(serializer);
            unit = serializer.unit;
        }

        @Override
        protected int getCurrentOuterSnapshotVersion() {
            return 3;
        }

        @Override
        protected void writeOuterSnapshot(DataOutputView out) throws IOException {
            out.writeInt(unit);
        }

        @Override
        protected void readOuterSnapshot(int version, DataInputView in, ClassLoader loader) throws IOException {
            unit = in.readInt();
        }

        @Override
        protected OuterSchemaCompatibility resolveOuterSchemaCompatibility(
                TypeSerializerSnapshot<Object> old) {
            if (!(old instanceof BoxSerializerSnapshot)) {
                return OuterSchemaCompatibility.INCOMPATIBLE;
            }
            int before = ((BoxSerializerSnapshot) old).unit;
            if (before == unit) {
                return OuterSchemaCompatibility.COMPATIBLE_AS_IS;
            }
            return unit == before + 1
                    ? OuterSchemaCompatibility.COMPATIBLE_AFTER_MIGRATION
                    : OuterSchemaCompatibility.INCOMPATIBLE;
        }

        @Override
        protected TypeSerializer<?>[] getNestedSerializers(BoxSerializer outer) {
            return new TypeSerializer[] {outer.inner};
        }

        @Override
        protected BoxSerializer createOuterSerializerWithNestedSerializers(TypeSerializer<?>[] nested) {
            return new BoxSerializer(unit, nested[0]);
        }
    }
}
