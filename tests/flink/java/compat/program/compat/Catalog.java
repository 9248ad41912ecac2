package compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.flink.api.common.typeutils.TypeSerializer;

/** Serializers by group and name; the first two of each group form a group of their own. */
public final class Catalog {
    private static final Map<String, Callable<TypeSerializer<?>>> MAKERS = new LinkedHashMap<>();
    private static final Map<String, List<String>> GROUPS = new LinkedHashMap<>();

    static {
        Basics.add();
        Composites.add();
        Kryos.add();
        Pojos.add();
        Tables.add();
        Customs.add();
    }

    private Catalog() {}

    static void add(String group, String name, Callable<TypeSerializer<?>> maker) {
        String full = group + "/" + name;
        if (MAKERS.put(full, maker) != null) {
            throw new IllegalStateException(full + " is there twice");
        }
        GROUPS.computeIfAbsent(group, key -> new ArrayList<>()).add(full);
    }

    /** Groups of names. */
    public static List<List<String>> groups() {
        List<List<String>> groups = new ArrayList<>(GROUPS.values());
        List<String> first = new ArrayList<>();
        for (List<String> group : GROUPS.values()) {
            first.addAll(group.subList(0, Math.min(2, group.size())));
        }
        groups.add(first);
        return groups;
    }

    /** Whether there is such a serializer. */
    public static boolean has(String name) {
        return MAKERS.containsKey(name);
    }

    /** A new serializer. */
    public static TypeSerializer<?> make(String name) throws Exception {
        return MAKERS.get(name).call();
    }
}
