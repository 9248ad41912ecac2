package steps;

import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** The states after they were migrated; nothing fills them. */
public final class NewJob {
    public static final long RECORDS = Cells.NUMBERS;
    private static final long LONG = 36_500;

    private NewJob() {}

    public static void build(StreamExecutionEnvironment env) {
        DataStream<Integer> numbers = Cells.numbers(env);
        TypeInformation<String> text = Types.STRING;
        TypeInformation<Address> address = TypeInformation.of(Address.class);
        Cells<String> collections = new Cells<>();
        if (!EnvironmentInformation.getVersion().startsWith("1.")) {
            // Flink 1.x gives the fields to Kryo, whatever the savepoint has.
            collections.value("basket", TypeInformation.of(Basket.class), restored());
        }
        collections.on(numbers, "collections", n -> "key-" + n, text);
        new Cells<String>()
                .value("ticket", TypeInformation.of(Ticket.class), restored())
                .list("tickets", TypeInformation.of(Ticket.class), restored())
                .on(numbers, "kryo", n -> "key-" + n, text);
        new Cells<Tuple2<String, Long>>()
                .value("level", Types.INT, restored())
                .list("visits", Types.LONG, restored())
                .map("amounts", text, Types.LONG, restored())
                .timers()
                .on(numbers, "keys", n -> Tuple2.of("customer-" + n % 5, n % 5L), Types.TUPLE(text, Types.LONG));
        new Cells<String>()
                .value("account", TypeInformation.of(Account.class), restored())
                .map("accounts", Types.INT, TypeInformation.of(Account.class), restored())
                .on(numbers, "fields", n -> "key-" + n, text);
        new Cells<String>()
                .value("place", TypeInformation.of(Site.class), restored())
                .list("places", TypeInformation.of(Site.class), restored())
                .on(numbers, "classes", n -> "key-" + n, text);
        new Cells<String>()
                .value("taken", text, restored())
                .list("taken-list", Types.LONG, restored())
                .map("taken-map", Types.INT, text, restored())
                .ttl(1)
                .value("expired", text, restored())
                .value("shifted", text, restored())
                .ttl(LONG)
                .value("given", text, restored())
                .list("given-list", Types.LONG, restored())
                .map("given-map", Types.INT, text, restored())
                .on(numbers, "ttl", n -> "key-" + n, text);
        new Cells<String>()
                .value("value", Types.INT, restored())
                .list("list", Types.INT, restored())
                .map("map", text, Types.INT, restored())
                .on(numbers, "filters", n -> "key-" + n, text);
        new Cells<String>()
                .list("value-list", address, restored())
                .value("list-value", Types.LONG, restored())
                .map("value-map", text, Types.INT, restored())
                .value("map-value", Types.LONG, restored())
                .list("map-list", Types.TUPLE(text, Types.LONG), restored())
                .map("list-map", text, Types.INT, restored())
                .on(numbers, "kinds", n -> "key-" + n, text);
        new Cells<String>()
                .value("label", TypeInformation.of(Label.class), restored())
                .value("weight", Types.LONG, restored())
                .value("totals", TypeInformation.of(Totals.class), restored())
                .value("new-name", address, restored())
                .on(numbers, "states", n -> "key-" + n, text);
        new Cells<Integer>()
                .value("row", Types.ROW(text, Types.LONG, address, text), restored())
                .value("tuple", Types.TUPLE(address, text), restored())
                .on(numbers, "rows", n -> n - 7, Types.INT);
    }

    private static <S extends State> Cells.Fill<S> restored() {
        return (state, n) -> {
            throw new IllegalStateException("the source had emitted all numbers");
        };
    }
}
