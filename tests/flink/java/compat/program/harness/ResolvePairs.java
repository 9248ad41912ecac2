package harness;

import compat.Bytes;
import compat.Catalog;
import compat.Evolving;
import java.io.BufferedWriter;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSchemaCompatibility;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;

/**
 * Asks Flink for the compatibility of many pairs of serializers and writes snapshots and answers.
 *
 * <p>Lines of the output: {@code S name hex} a snapshot; {@code P old new outcome legacy restore} what comes of a pair,
 * when the new snapshot is asked; when the old one is asked, up to 1.20; and why the old serializer cannot be restored
 * from its snapshot, if it cannot. The names of classes that evolve begin with {@code old:} and {@code new:}; with
 * {@code rewritten:}, the old snapshots as a job with the new classes writes them again without having used them; with
 * {@code earlier:}, those of an earlier release.
 */
@SuppressWarnings({"rawtypes", "unchecked"})
public final class ResolvePairs {
    private final Map<String, byte[]> snapshots = new TreeMap<>();
    private final Map<String, String> pairs = new TreeMap<>();

    public static int run(String[] words) throws Exception {
        Map<String, String> args = new TreeMap<>();
        for (int i = 0; i + 1 < words.length; i += 2) {
            args.put(words[i].substring(2), words[i + 1]);
        }
        ResolvePairs program = new ResolvePairs();
        program.resolveUnchanged();
        program.resolveEvolving(load(args.get("before")), load(args.get("after")));
        if (args.containsKey("earlier")) {
            program.resolveEarlier(Paths.get(args.get("earlier")), load(args.get("after")));
        }
        program.write(Paths.get(args.get("output")));
        return 0;
    }

    private static ClassLoader load(String classes) throws Exception {
        URL[] urls = {Paths.get(classes).toUri().toURL()};
        return new URLClassLoader(urls, ResolvePairs.class.getClassLoader());
    }

    /** Serializers of classes that stay what they are: groups whose members are compared with each other. */
    private void resolveUnchanged() throws Exception {
        ClassLoader loader = ResolvePairs.class.getClassLoader();
        for (List<String> group : Catalog.groups()) {
            for (String before : group) {
                for (String after : group) {
                    resolve(before, Catalog.make(before), after, Catalog.make(after), loader);
                }
            }
        }
    }

    /** Serializers of classes that have the same name and other contents before and after. */
    private void resolveEvolving(ClassLoader before, ClassLoader after) throws Exception {
        Map<String, TypeSerializer<?>> olds = new Evolving(before, "old").list();
        Map<String, TypeSerializer<?>> news = new Evolving(after, "new").list();
        for (String name : olds.keySet()) {
            if (news.containsKey(name)) {
                resolve("old:" + name, olds.get(name), "new:" + name, news.get(name), after);
                byte[] rewritten = rewrite(snapshots.get("old:" + name), after);
                if (rewritten != null) {
                    snapshots.put("rewritten:" + name, rewritten);
                    resolve("rewritten:" + name, rewritten, "old:" + name, olds.get(name), before);
                    resolve("rewritten:" + name, rewritten, "new:" + name, news.get(name), after);
                }
            }
        }
    }

    /** The snapshots that an earlier release wrote of the same serializers: the output of this program there. */
    private void resolveEarlier(Path earlier, ClassLoader after) throws Exception {
        Map<String, TypeSerializer<?>> news = new Evolving(after, "new").list();
        for (String line : Files.readAllLines(earlier)) {
            String[] words = line.split("\t");
            String name = words[1];
            String evolving = name.startsWith("old:") ? name.substring("old:".length()) : "";
            TypeSerializer<?> now = Catalog.has(name) ? Catalog.make(name) : news.get(evolving);
            if (words[0].equals("S") && now != null) {
                byte[] bytes = Bytes.parse(words[2]);
                snapshots.put("earlier:" + name, bytes);
                resolve("earlier:" + name, bytes, evolving.isEmpty() ? name : "new:" + evolving, now, after);
            }
        }
    }

    /** A state that the new job never touches: its old snapshot is written again, as far as it could be read. */
    private static byte[] rewrite(byte[] old, ClassLoader loader) {
        try {
            byte[] bytes = Bytes.write(Bytes.read(old, loader));
            return Arrays.equals(bytes, old) ? null : bytes;
        } catch (Exception unreadable) {
            return null;
        }
    }

    private void resolve(
            String oldName, TypeSerializer<?> old, String newName, TypeSerializer<?> now, ClassLoader loader)
            throws Exception {
        resolve(oldName, keep(oldName, old), newName, now, loader);
    }

    private void resolve(String oldName, byte[] old, String newName, TypeSerializer<?> now, ClassLoader loader)
            throws Exception {
        keep(newName, now);
        String outcome = ask(() -> ((TypeSerializerSnapshot) now.snapshotConfiguration())
                .resolveSchemaCompatibility((TypeSerializerSnapshot) Bytes.read(old, loader)));
        String legacy = "";
        try {
            java.lang.reflect.Method method = TypeSerializerSnapshot.class.getMethod(
                    "resolveSchemaCompatibility", TypeSerializer.class);
            legacy = ask(() -> (TypeSerializerSchemaCompatibility) method.invoke(Bytes.read(old, loader), now));
        } catch (NoSuchMethodException e) {
            // 2.x has only the new direction.
        }
        String restore = ask(() -> {
            Bytes.read(old, loader).restoreSerializer();
            return TypeSerializerSchemaCompatibility.compatibleAsIs();
        });
        pairs.put(oldName + "\t" + newName, outcome + "\t" + legacy + "\t" + (restore.startsWith("!") ? restore : ""));
    }

    private byte[] keep(String name, TypeSerializer<?> serializer) throws Exception {
        byte[] bytes = Bytes.write(serializer);
        byte[] known = snapshots.putIfAbsent(name, bytes);
        if (known != null && !Arrays.equals(known, bytes)) {
            throw new IllegalStateException(name + " has several snapshots");
        }
        return bytes;
    }

    /** A question to Flink. */
    private interface Question {
        TypeSerializerSchemaCompatibility ask() throws Exception;
    }

    private static String ask(Question question) {
        try {
            TypeSerializerSchemaCompatibility answer = question.ask();
            if (answer.isCompatibleAsIs()) {
                return "AS_IS";
            }
            if (answer.isCompatibleAfterMigration()) {
                return "AFTER_MIGRATION";
            }
            return answer.isCompatibleWithReconfiguredSerializer() ? "RECONFIGURED" : "INCOMPATIBLE";
        } catch (Throwable failure) {
            Throwable cause = failure;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return "!" + cause.getClass().getSimpleName() + ": "
                    + Objects.toString(cause.getMessage(), "").replaceAll("\\s+", " ");
        }
    }

    private void write(Path output) throws Exception {
        try (BufferedWriter out = Files.newBufferedWriter(output)) {
            for (Map.Entry<String, byte[]> each : snapshots.entrySet()) {
                out.write("S\t" + each.getKey() + "\t" + Bytes.hex(each.getValue()) + "\n");
            }
            for (Map.Entry<String, String> each : pairs.entrySet()) {
                out.write("P\t" + each.getKey() + "\t" + each.getValue() + "\n");
            }
        }
    }
}
