package stores;

import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** List and broadcast states after they were migrated; nothing fills them. */
public final class NewJob {
    public static final long RECORDS = Stores.NUMBERS + Stores.BROADCASTS;

    private NewJob() {}

    public static void build(StreamExecutionEnvironment env) {
        TypeInformation<Account> account = TypeInformation.of(Account.class);
        new Stores()
                .split("accounts", account, n -> null)
                .split("evens", Types.INT, n -> null)
                .split("kept", Types.STRING, n -> null)
                .union("offsets", Types.TUPLE(Types.LONG, Types.STRING), n -> null)
                .union("numbers", Types.LONG, n -> null)
                .broadcast("rules", Types.INT, account, n -> null, n -> null)
                .broadcast("titles", Types.STRING, Types.STRING, n -> null, n -> null)
                .on(env, "stores");
    }
}
