package compat;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshotSerializationUtil;
import org.apache.flink.core.memory.DataInputViewStreamWrapper;
import org.apache.flink.core.memory.DataOutputViewStreamWrapper;

/** Snapshots as bytes. */
public final class Bytes {
    private Bytes() {}

    public static byte[] write(TypeSerializer<?> serializer) throws Exception {
        return write(serializer.snapshotConfiguration());
    }

    public static byte[] write(TypeSerializerSnapshot<?> snapshot) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        TypeSerializerSnapshotSerializationUtil.writeSerializerSnapshot(
                new DataOutputViewStreamWrapper(bytes), snapshot);
        return bytes.toByteArray();
    }

    public static TypeSerializerSnapshot<?> read(byte[] bytes, ClassLoader loader) throws Exception {
        return TypeSerializerSnapshotSerializationUtil.readSerializerSnapshot(
                new DataInputViewStreamWrapper(new ByteArrayInputStream(bytes)), loader);
    }

    public static byte[] parse(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }

    public static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }
}
