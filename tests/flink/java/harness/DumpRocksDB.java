package harness;

import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.rocksdb.ColumnFamilyDescriptor;
import org.rocksdb.ColumnFamilyHandle;
import org.rocksdb.ColumnFamilyOptions;
import org.rocksdb.DBOptions;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;
import org.rocksdb.RocksIterator;

/**
 * Opens a directory of RocksDB files with Flink's own RocksDB, read only.
 * --directory DIR --entries FILE; FILE gets per column family a line with its name in hex, and per entry a line with the
 * name, the key and the value.
 */
public final class DumpRocksDB {
    /** {@code RocksDBOperationUtils.MERGE_OPERATOR_NAME}: elements of a list are appended with a comma between. */
    private static final String MERGE_OPERATOR = "stringappendtest";

    private DumpRocksDB() {}

    public static int run(String[] words) {
        int code = 0;
        Args args = Args.parse(words);
        try (BufferedWriter out = Files.newBufferedWriter(Path.of(args.get("entries")))) {
            RocksDB.loadLibrary();
            dump(args.get("directory"), out);
        } catch (Exception e) {
            Failure.print(e);
            code = 1;
        }
        return code;
    }

    private static void dump(String directory, BufferedWriter out) throws Exception {
        List<ColumnFamilyDescriptor> families = new ArrayList<>();
        try (Options options = new Options();
                ColumnFamilyOptions familyOptions = new ColumnFamilyOptions().setMergeOperatorName(MERGE_OPERATOR)) {
            for (byte[] name : RocksDB.listColumnFamilies(options, directory)) {
                families.add(new ColumnFamilyDescriptor(name, familyOptions));
            }
            List<ColumnFamilyHandle> handles = new ArrayList<>();
            try (DBOptions dbOptions = new DBOptions();
                    RocksDB db = RocksDB.openReadOnly(dbOptions, directory, families, handles)) {
                for (ColumnFamilyHandle handle : handles) {
                    dump(db, handle, out);
                    handle.close();
                }
            }
        }
    }

    private static void dump(RocksDB db, ColumnFamilyHandle family, BufferedWriter out) throws Exception {
        HexFormat hex = HexFormat.of();
        String name = hex.formatHex(family.getName());
        out.write(name + "\n");
        try (RocksIterator iterator = db.newIterator(family)) {
            for (iterator.seekToFirst(); iterator.isValid(); iterator.next()) {
                out.write(name + " " + hex.formatHex(iterator.key()) + " " + hex.formatHex(iterator.value()) + "\n");
            }
            iterator.status();
        }
    }
}
