package conflict;

import com.acme.orders.ReplaySource;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamStatementSet;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.types.Row;

/** Rows of one city that come from several orders: the sink keeps them below the sorted time until its watermark. */
public final class ConflictJob {
    /** How many records the source emits altogether. */
    public static final long RECORDS = 24;

    private ConflictJob() {}

    /** The sink keeps what comes after the last watermark, which lies before 1970. */
    private static final class Watermarks implements WatermarkGenerator<Integer> {
        @Override
        public void onEvent(Integer n, long time, WatermarkOutput output) {
            if (n == 9) {
                output.emitWatermark(new Watermark(-1_500L));
            }
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    public static void build(StreamExecutionEnvironment env) {
        List<Integer> numbers = IntStream.range(0, 24).boxed().collect(Collectors.toList());
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        DataStream<Row> orders = env.fromSource(
                        new ReplaySource<>(List.of(numbers)),
                        WatermarkStrategy.<Integer>forGenerator(context -> new Watermarks())
                                .withTimestampAssigner((n, previous) -> n * 1_000L),
                        "numbers",
                        Types.INT)
                .uid("numbers")
                .setParallelism(1)
                .map(n -> Row.of((long) n, "city-" + n % 5, n * 100L))
                .returns(Types.ROW_NAMED(new String[] {"id", "city", "amount"}, Types.LONG, Types.STRING, Types.LONG))
                .setParallelism(1)
                .uid("rows");
        tables.createTemporaryView("orders", tables.fromChangelogStream(orders, Schema.newBuilder()
                .column("id", "BIGINT NOT NULL")
                .column("city", "STRING NOT NULL")
                .column("amount", "BIGINT")
                .columnByMetadata("at", DataTypes.TIMESTAMP_LTZ(3), "rowtime")
                .watermark("at", "SOURCE_WATERMARK()")
                .build(), ChangelogMode.all()));
        tables.executeSql("CREATE TABLE cities (city STRING NOT NULL, amount BIGINT, PRIMARY KEY (city) NOT ENFORCED) "
                + "WITH ('connector' = 'blackhole')");
        StreamStatementSet statements = tables.createStatementSet();
        statements.addInsertSql(
                "INSERT INTO cities SELECT city, amount FROM orders ON CONFLICT DO NOTHING");
        statements.attachAsDataStream();
    }
}
