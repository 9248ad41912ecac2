package classic;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.typeutils.CompositeTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A map serializer of a user, whose snapshot has outer data: a label. */
public final class LabelledMapSerializer<K, V> extends TypeSerializer<Map<K, V>> {
    private static final long serialVersionUID = 1;
    private final String label;
    private final MapSerializer<K, V> map;

    public LabelledMapSerializer(String label, TypeSerializer<K> key, TypeSerializer<V> value) {
        this.label = label;
        this.map = new MapSerializer<>(key, value);
    }

    @Override
    public boolean isImmutableType() {
        return false;
    }

    @Override
    public TypeSerializer<Map<K, V>> duplicate() {
        return new LabelledMapSerializer<>(
                label, map.getKeySerializer().duplicate(), map.getValueSerializer().duplicate());
    }

    @Override
    public Map<K, V> createInstance() {
        return new HashMap<>();
    }

    @Override
    public Map<K, V> copy(Map<K, V> from) {
        return map.copy(from);
    }

    @Override
    public Map<K, V> copy(Map<K, V> from, Map<K, V> reuse) {
        return map.copy(from);
    }

    @Override
    public int getLength() {
        return -1;
    }

    @Override
    public void serialize(Map<K, V> record, DataOutputView target) throws IOException {
        map.serialize(record, target);
    }

    @Override
    public Map<K, V> deserialize(DataInputView source) throws IOException {
        return map.deserialize(source);
    }

    @Override
    public Map<K, V> deserialize(Map<K, V> reuse, DataInputView source) throws IOException {
        return map.deserialize(source);
    }

    @Override
    public void copy(DataInputView source, DataOutputView target) throws IOException {
        map.copy(source, target);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof LabelledMapSerializer
                && label.equals(((LabelledMapSerializer<?, ?>) other).label)
                && map.equals(((LabelledMapSerializer<?, ?>) other).map);
    }

    @Override
    public int hashCode() {
        return label.hashCode();
    }

    @Override
    public TypeSerializerSnapshot<Map<K, V>> snapshotConfiguration() {
        return new LabelledMapSnapshot<>(this);
    }

    /** Outer data of version 2: the label, which stays. */
    public static final class LabelledMapSnapshot<K, V>
            extends CompositeTypeSerializerSnapshot<Map<K, V>, LabelledMapSerializer<K, V>> {
        private String label;

        public LabelledMapSnapshot() {}

        LabelledMapSnapshot(LabelledMapSerializer<K, V> serializer) {
            super(serializer);
            label = serializer.label;
        }

        @Override
        protected int getCurrentOuterSnapshotVersion() {
            return 2;
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
        protected OuterSchemaCompatibility resolveOuterSchemaCompatibility(TypeSerializerSnapshot<Map<K, V>> old) {
            boolean same = old instanceof LabelledMapSnapshot && label.equals(((LabelledMapSnapshot<?, ?>) old).label);
            return same ? OuterSchemaCompatibility.COMPATIBLE_AS_IS : OuterSchemaCompatibility.INCOMPATIBLE;
        }

        @Override
        protected TypeSerializer<?>[] getNestedSerializers(LabelledMapSerializer<K, V> outer) {
            return new TypeSerializer<?>[] {outer.map.getKeySerializer(), outer.map.getValueSerializer()};
        }

        @Override
        @SuppressWarnings("unchecked")
        protected LabelledMapSerializer<K, V> createOuterSerializerWithNestedSerializers(TypeSerializer<?>[] nested) {
            return new LabelledMapSerializer<>(label, (TypeSerializer<K>) nested[0], (TypeSerializer<V>) nested[1]);
        }
    }
}
