package harness;

import java.io.File;
import java.net.URI;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.core.fs.FileSystemFactory;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.fs.local.LocalFileSystem;

/**
 * Local files of which some directories lie elsewhere: the system property {@code harness.mapping} has the value
 * {@code FROM=TO}, several with line breaks between, and may change. So a snapshot that names its files by absolute paths can be written and restored in any directory.
 */
public final class MappedFileSystemFactory implements FileSystemFactory {
    @Override
    public String getScheme() {
        return "file";
    }

    @Override
    public FileSystem create(URI uri) {
        return new MappedFileSystem();
    }

    private static Map<String, String> mapping() {
        Map<String, String> mapping = new LinkedHashMap<>();
        for (String rule : System.getProperty("harness.mapping", "").split("\n")) {
            if (!rule.isEmpty()) {
                String[] sides = rule.split("=", 2);
                mapping.put(sides[0], sides[1]);
            }
        }
        return mapping;
    }

    private static final class MappedFileSystem extends LocalFileSystem {
        @Override
        public File pathToFile(Path path) {
            String name = path.getPath();
            for (Map.Entry<String, String> rule : mapping().entrySet()) {
                if (name.equals(rule.getKey()) || name.startsWith(rule.getKey() + "/")) {
                    return new File(rule.getValue() + name.substring(rule.getKey().length()));
                }
            }
            return super.pathToFile(path);
        }
    }
}
