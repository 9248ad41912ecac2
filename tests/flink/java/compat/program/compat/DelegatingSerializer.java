package compat;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A serializer that writes what another one writes. */
abstract class DelegatingSerializer<T> extends TypeSerializer<T> {
    private static final long serialVersionUID = 1;
    protected final TypeSerializer<T> inner;

    DelegatingSerializer(TypeSerializer<T> inner) {
        this.inner = inner;
    }

    @Override
    public boolean isImmutableType() {
        return inner.isImmutableType();
    }

    @Override
    public T createInstance() {
        return inner.createInstance();
    }

    @Override
    public T copy(T from) {
        return inner.copy(from);
    }

    @Override
    public T copy(T from, T reuse) {
        return inner.copy(from);
    }

    @Override
    public int getLength() {
        return inner.getLength();
    }

    @Override
    public void serialize(T value, DataOutputView target) throws IOException {
        inner.serialize(value, target);
    }

    @Override
    public T deserialize(DataInputView source) throws IOException {
        return inner.deserialize(source);
    }

    @Override
    public T deserialize(T reuse, DataInputView source) throws IOException {
        return inner.deserialize(source);
    }

    @Override
    public void copy(DataInputView source, DataOutputView target) throws IOException {
        inner.copy(source, target);
    }

    @Override
    public boolean equals(Object other) {
        return other != null && other.getClass() == getClass();
    }

    @Override
    public int hashCode() {
        return getClass().hashCode();
    }
}
