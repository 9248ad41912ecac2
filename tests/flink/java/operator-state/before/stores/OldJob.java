package stores;

import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** List and broadcast states before they are migrated. */
public final class OldJob {
    public static final long RECORDS = Stores.NUMBERS + Stores.BROADCASTS;

    private OldJob() {}

    public static void build(StreamExecutionEnvironment env) {
        TypeInformation<Account> account = TypeInformation.of(Account.class);
        new Stores()
                .split("accounts", account, OldJob::account)
                .split("numbers", Types.INT, n -> n)
                .split("kept", Types.STRING, n -> "kept \u20ac " + n)
                .split("gone", Types.STRING, n -> "nobody reads this")
                .union("offsets", Types.TUPLE(Types.STRING, Types.INT, Types.LONG),
                        n -> Tuple3.of("topic-" + n, n, n * 1_000_000_007L))
                .union("texts", Types.STRING, n -> Integer.toString(n))
                .broadcast("rules", Types.INT, account, n -> n * 7, OldJob::account)
                .broadcast("names", Types.STRING, Types.STRING, n -> "name-" + n, n -> "text \"" + n + "\"")
                .broadcast("same", account, Types.LONG, OldJob::account, n -> n * 11L)
                .on(env, "stores");
    }

    private static Account account(int n) {
        Account account = new Account();
        account.owner = n % 4 == 0 ? null : "owner \u00e9 " + n;
        account.level = n * 3;
        account.visits = n % 5 == 0 ? null : n;
        account.note = "note " + n;
        if (n % 3 != 0) {
            account.home = new Account.Home();
            account.home.city = "city " + n;
            account.home.zip = 10_000 + n;
        }
        return account;
    }
}
