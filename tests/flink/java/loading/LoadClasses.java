import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshotSerializationUtil;
import org.apache.flink.core.memory.DataInputDeserializer;
import org.apache.flink.core.memory.DataOutputSerializer;

/** Loads serializer snapshot classes as a restore does: one name per line in, name and error (or nothing) out. */
public class LoadClasses {
    public static void main(String[] arguments) throws Exception {
        for (String name : Files.readAllLines(Path.of(arguments[0]))) {
            DataOutputSerializer out = new DataOutputSerializer(64);
            out.writeUTF(name);
            String error = "";
            try {
                TypeSerializerSnapshotSerializationUtil.readAndInstantiateSnapshotClass(
                        new DataInputDeserializer(out.getCopyOfBuffer()),
                        LoadClasses.class.getClassLoader());
            } catch (Throwable failure) {
                error = String.valueOf(failure.getMessage());
            }
            System.out.println(name + "\t" + error);
        }
    }
}
