package steps;

import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** The states of {@code OldParcels} with other fields. */
public final class NewParcels {
    public static final long RECORDS = Cells.NUMBERS;

    private NewParcels() {}

    public static void build(StreamExecutionEnvironment env) {
        TypeInformation<Parcel> type = TypeInformation.of(Parcel.class);
        Cells<String> cells = new Cells<>();
        if (EnvironmentInformation.getVersion().startsWith("1.")) {
            cells.value("parcel", type, (state, n) -> {})
                    .list("parcels", type, (state, n) -> {})
                    .map("by-number", Types.INT, type, (state, n) -> {});
        }
        cells.value("crate", TypeInformation.of(Crate.class), (state, n) -> {})
                .on(Cells.numbers(env), "parcels", n -> "key-" + n, Types.STRING);
    }
}
