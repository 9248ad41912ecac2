package harness;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.runtime.state.InternalKeyContext;
import org.apache.flink.runtime.state.RegisteredKeyValueStateBackendMetaInfo;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.changelog.StateChangelogWriter;
import org.apache.flink.runtime.state.ttl.TtlStateFactory;

/**
 * Lets Flink's logger describe states, as it does before their first change.
 * --output FILE; FILE gets a line per state: a word for the case, and the description in hexadecimal digits.
 */
public final class RecordDescriptions {
    private final List<String> lines = new ArrayList<>();

    public static int run(String[] words) throws Exception {
        RecordDescriptions recording = new RecordDescriptions();
        recording.recordAll();
        Files.write(Path.of(Args.parse(words).get("output")), recording.lines);
        return 0;
    }

    private void recordAll() throws Exception {
        TypeSerializer<?> expiring = new TtlStateFactory.TtlSerializer<>(LongSerializer.INSTANCE, StringSerializer.INSTANCE);
        StateTtlConfig minutes = StateTtlConfig.newBuilder(Duration.ofMinutes(30)).build();
        record("ttl", StateDescriptor.Type.VALUE, expiring, minutes, null);
        record("ttl-list", StateDescriptor.Type.LIST, new ListSerializer<>(expiring), minutes, null);
        record("on-read", expiring, StateTtlConfig.newBuilder(Duration.ofMillis(1500)).updateTtlOnReadAndWrite().returnExpiredIfNotCleanedUp());
        record("full", expiring, days().cleanupFullSnapshot());
        record("incremental", expiring, days().cleanupIncrementally(7, true));
        record("filter", expiring, days().cleanupInRocksdbCompactFilter(500, Duration.ofHours(2)));
        record(
            "all",
            expiring,
            days().cleanupFullSnapshot().cleanupIncrementally(7, false).cleanupInRocksdbCompactFilter(500).disableCleanupInBackground());
        record("default", StateDescriptor.Type.VALUE, StringSerializer.INSTANCE, StateTtlConfig.DISABLED, "Grüße");
    }

    private static StateTtlConfig.Builder days() {
        return StateTtlConfig.newBuilder(Duration.ofDays(1));
    }

    private void record(String name, TypeSerializer<?> serializer, StateTtlConfig.Builder config) throws Exception {
        record(name, StateDescriptor.Type.VALUE, serializer, config.build(), null);
    }

    private void record(String name, StateDescriptor.Type type, TypeSerializer<?> serializer, StateTtlConfig config, Object value)
            throws Exception {
        Class<?> logger = Class.forName("org.apache.flink.state.changelog.KvStateChangeLoggerImpl");
        Constructor<?> constructor = logger.getDeclaredConstructors()[0];
        constructor.setAccessible(true);
        Object made = constructor.newInstance(
            StringSerializer.INSTANCE,
            VoidNamespaceSerializer.INSTANCE,
            serializer,
            proxy(InternalKeyContext.class, name),
            proxy(StateChangelogWriter.class, name),
            new RegisteredKeyValueStateBackendMetaInfo<>(type, "state", VoidNamespaceSerializer.INSTANCE, serializer),
            config,
            value,
            (short) 0);
        Method clear = logger.getMethod("valueCleared", Object.class);
        clear.setAccessible(true);
        clear.invoke(made, VoidNamespace.INSTANCE);
    }

    /** A key context with one key, or a writer that keeps descriptions. */
    private Object proxy(Class<?> type, String name) {
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (self, method, arguments) -> {
            if (method.getName().equals("appendMeta")) {
                lines.add(name + " " + HexFormat.of().formatHex((byte[]) arguments[0]));
            }
            return method.getReturnType() == int.class ? (Object) 0 : method.getName().equals("getCurrentKey") ? "key" : null;
        });
    }
}
