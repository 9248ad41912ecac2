package migrating;

import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** The same job with a map whose keys migrate too, which only the heap backend can. */
public final class MapKeysJob {
    /** How many records the source emits. */
    public static final long RECORDS = MigratingJob.RECORDS;

    private MapKeysJob() {}

    public static void build(StreamExecutionEnvironment env) {
        MigratingJob.build(env, true);
    }
}
