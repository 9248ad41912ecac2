import java.util.HexFormat;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.core.memory.DataOutputSerializer;

/** Prints the serializer snapshot that Flink makes for each named class. */
public class Probe {
    public static void main(String[] names) throws Exception {
        for (String name : names) {
            TypeInformation<?> type = TypeInformation.of(Class.forName(name));
            TypeSerializer<?> serializer = type.createSerializer(new SerializerConfigImpl());
            DataOutputSerializer out = new DataOutputSerializer(1000);
            TypeSerializerSnapshot.writeVersionedSnapshot(out, serializer.snapshotConfiguration());
            System.out.println("CLASS " + name + " " + HexFormat.of().formatHex(out.getCopyOfBuffer()));
        }
    }
}
