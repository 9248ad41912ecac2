package steps;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** POJOs with fields of Kryo, in value, list and map state. */
public final class OldParcels {
    public static final long RECORDS = Cells.NUMBERS;

    private OldParcels() {}

    public static void build(StreamExecutionEnvironment env) {
        TypeInformation<Parcel> type = TypeInformation.of(Parcel.class);
        new Cells<String>()
                .value("parcel", type, (state, n) -> state.update(parcel(n)))
                .list("parcels", type, (state, n) -> state.addAll(List.of(parcel(n), parcel(n + 1))))
                .map("by-number", Types.INT, type, (state, n) -> state.put(n, parcel(n)))
                .value("crate", TypeInformation.of(Crate.class), (state, n) -> state.update(crate(n)))
                .on(Cells.numbers(env), "parcels", n -> "key-" + n, Types.STRING);
    }

    private static Parcel parcel(int n) {
        Parcel parcel = new Parcel();
        parcel.owner = n % 7 == 0 ? null : "owner " + n;
        parcel.weight = n;
        parcel.note = "note " + n;
        if (n % 5 != 0) {
            parcel.counts = new TreeMap<>();
            for (int i = 0; i < n % 4; i++) {
                parcel.counts.put("count " + i, (long) n * i);
            }
        }
        parcel.tags = n % 6 == 0 ? null : new ArrayList<>(List.of("tag " + n, "tag"));
        parcel.first = n % 4 == 0 ? null : stop(n);
        parcel.stops = new Stop[] {stop(n + 1), stop(n + 2)};
        return parcel;
    }

    private static Crate crate(int n) {
        Parcel parcel = parcel(n);
        Crate crate = new Crate();
        crate.owner = parcel.owner;
        crate.weight = parcel.weight;
        crate.counts = parcel.counts;
        crate.tags = parcel.tags;
        return crate;
    }

    private static Stop stop(int n) {
        Stop stop = new Stop();
        stop.city = "city " + n;
        stop.zip = 1000 + n;
        stop.notes = n % 3 == 0 ? null : new ArrayList<>(List.of("note " + n));
        return stop;
    }
}
