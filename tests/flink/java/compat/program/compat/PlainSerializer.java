package compat;

import org.apache.flink.api.common.typeutils.SimpleTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.LongSerializer;

/** A user's serializer without parameters. */
public final class PlainSerializer extends DelegatingSerializer<Long> {
    private static final long serialVersionUID = 1;

    public PlainSerializer() {
        super(LongSerializer.INSTANCE);
    }

    @Override
    public TypeSerializer<Long> duplicate() {
        return this;
    }

    @Override
    public TypeSerializerSnapshot<Long> snapshotConfiguration() {
        return new PlainSerializerSnapshot();
    }

    /** A simple snapshot. */
    public static final class PlainSerializerSnapshot extends SimpleTypeSerializerSnapshot<Long> {
        public PlainSerializerSnapshot() {
            super(PlainSerializer::new);
        }
    }
}
