package keygroups;

import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.avro.io.Encoder;
import org.apache.avro.util.Utf8;

/** The bytes of Flink's Avro serializer, which is no part of what the package index has. */
final class FlinkAvroEncoder extends Encoder {
    private final DataOutputStream out;

    FlinkAvroEncoder(DataOutputStream out) {
        this.out = out;
    }

    @Override
    public void flush() throws IOException {
        out.flush();
    }

    @Override
    public void writeNull() {}

    @Override
    public void writeBoolean(boolean value) throws IOException {
        out.writeBoolean(value);
    }

    @Override
    public void writeInt(int value) throws IOException {
        out.writeInt(value);
    }

    @Override
    public void writeLong(long value) throws IOException {
        out.writeLong(value);
    }

    @Override
    public void writeFloat(float value) throws IOException {
        out.writeFloat(value);
    }

    @Override
    public void writeDouble(double value) throws IOException {
        out.writeDouble(value);
    }

    @Override
    public void writeString(Utf8 text) throws IOException {
        writeBytes(text.toString().getBytes(StandardCharsets.UTF_8));
    }

    @Override
    public void writeBytes(ByteBuffer bytes) throws IOException {
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        writeBytes(copy);
    }

    @Override
    public void writeBytes(byte[] bytes, int start, int length) throws IOException {
        out.writeInt(length);
        out.write(bytes, start, length);
    }

    @Override
    public void writeFixed(byte[] bytes, int start, int length) throws IOException {
        out.write(bytes, start, length);
    }

    @Override
    public void writeEnum(int index) throws IOException {
        out.writeInt(index);
    }

    @Override
    public void writeArrayStart() {}

    @Override
    public void setItemCount(long count) throws IOException {
        if (count > 0) {
            writeCount(count);
        }
    }

    @Override
    public void startItem() {}

    @Override
    public void writeArrayEnd() throws IOException {
        writeCount(0);
    }

    @Override
    public void writeMapStart() {}

    @Override
    public void writeMapEnd() throws IOException {
        writeCount(0);
    }

    @Override
    public void writeIndex(int index) throws IOException {
        out.writeInt(index);
    }

    private void writeCount(long count) throws IOException {
        long rest = count;
        while ((rest & ~0x7FL) != 0) {
            out.write((int) (rest & 0x7F) | 0x80);
            rest >>>= 7;
        }
        out.write((int) rest);
    }
}
