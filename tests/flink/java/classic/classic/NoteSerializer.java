package classic;

import java.io.IOException;
import org.apache.flink.api.common.typeutils.SimpleTypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.api.common.typeutils.base.TypeSerializerSingleton;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;

/** A serializer of a user, which writes text by {@code writeUTF}. */
public final class NoteSerializer extends TypeSerializerSingleton<String> {
    private static final long serialVersionUID = 1;
    static final NoteSerializer INSTANCE = new NoteSerializer();

    @Override
    public boolean isImmutableType() {
        return true;
    }

    @Override
    public String createInstance() {
        return "";
    }

    @Override
    public String copy(String from) {
        return from;
    }

    @Override
    public String copy(String from, String reuse) {
        return from;
    }

    @Override
    public int getLength() {
        return -1;
    }

    @Override
    public void serialize(String record, DataOutputView target) throws IOException {
        target.writeUTF(record);
    }

    @Override
    public String deserialize(DataInputView source) throws IOException {
        return source.readUTF();
    }

    @Override
    public String deserialize(String reuse, DataInputView source) throws IOException {
        return source.readUTF();
    }

    @Override
    public void copy(DataInputView source, DataOutputView target) throws IOException {
        target.writeUTF(source.readUTF());
    }

    @Override
    public TypeSerializerSnapshot<String> snapshotConfiguration() {
        return new NoteSnapshot();
    }

    /** Has no content. */
    public static final class NoteSnapshot extends SimpleTypeSerializerSnapshot<String> {
        public NoteSnapshot() {
            super(() -> INSTANCE);
        }
    }
}
