package steps;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** The states before they are migrated: an operator for each kind of step. */
public final class OldJob {
    public static final long RECORDS = Cells.NUMBERS;
    private static final long LONG = 36_500;

    private OldJob() {}

    public static void build(StreamExecutionEnvironment env) {
        DataStream<Integer> numbers = Cells.numbers(env);
        TypeInformation<String> text = Types.STRING;
        new Cells<String>()
                .value("basket", TypeInformation.of(Basket.class), (state, n) -> state.update(basket(n)))
                .on(numbers, "collections", n -> "key-" + n, text);
        new Cells<String>()
                .value("ticket", Types.GENERIC(Ticket.class), (state, n) -> state.update(ticket(n)))
                .list("tickets", Types.GENERIC(Ticket.class), (state, n) -> state.addAll(List.of(ticket(n), ticket(-n))))
                .on(numbers, "kryo", n -> "key-" + n, text);
        new Cells<String>()
                .value("level", Types.INT, (state, n) -> state.update(n))
                .list("visits", Types.LONG, (state, n) -> state.add((long) n))
                .map("amounts", text, Types.LONG, (state, n) -> {
                    state.put("all", (long) n);
                    state.put("of " + n % 4, 100L + n);
                })
                .timers()
                .on(numbers, "keys", n -> "customer-" + n % 5 + "/" + n, text);
        new Cells<String>()
                .value("account", TypeInformation.of(Account.class), (state, n) -> state.update(account(n)))
                .map("accounts", Types.INT, TypeInformation.of(Account.class), (state, n) -> {
                    state.put(n, account(n));
                    state.put(-n, account(n + 1));
                })
                .on(numbers, "fields", n -> "key-" + n, text);
        new Cells<String>()
                .value("place", TypeInformation.of(Place.class), (state, n) -> state.update(place(n)))
                .list("places", TypeInformation.of(Place.class), (state, n) -> state.addAll(List.of(place(n), place(n + 1))))
                .on(numbers, "classes", n -> "key-" + n, text);
        new Cells<String>()
                .value("given", text, (state, n) -> state.update("given " + n))
                .value("expired", text, (state, n) -> state.update("expired " + n))
                .list("given-list", Types.LONG, (state, n) -> state.addAll(List.of((long) n, -1L)))
                .map("given-map", Types.INT, text, (state, n) -> state.put(n, "given " + n))
                .ttl(LONG)
                .value("taken", text, (state, n) -> state.update("taken " + n))
                .list("taken-list", Types.LONG, (state, n) -> state.addAll(List.of((long) n, -1L)))
                .map("taken-map", Types.INT, text, (state, n) -> state.put(n, "taken " + n))
                .value("shifted", text, (state, n) -> state.update("shifted " + n))
                .on(numbers, "ttl", n -> "key-" + n, text);
        new Cells<String>()
                .value("value", Types.INT, (state, n) -> state.update(n))
                .list("list", Types.INT, (state, n) -> state.addAll(List.of(n, n + 1, n + 2)))
                .map("map", text, Types.INT, (state, n) -> {
                    state.put("odd", 2 * n + 1);
                    state.put("number " + n, n);
                })
                .on(numbers, "filters", n -> "key-" + n, text);
        new Cells<String>()
                .value("value-list", TypeInformation.of(Address.class), (state, n) -> state.update(address(n)))
                .list("list-value", Types.LONG, (state, n) -> state.addAll(List.of((long) n, 10L * n)))
                .value("value-map", TypeInformation.of(Address.class), (state, n) -> state.update(address(n)))
                .map("map-value", text, Types.LONG, (state, n) -> {
                    state.put("a", (long) n);
                    state.put("b", 1_000L);
                })
                .map("map-list", text, Types.LONG, (state, n) -> {
                    state.put("b" + n, (long) n);
                    state.put("a" + n, -1L);
                })
                .list("list-map", TypeInformation.of(Address.class),
                        (state, n) -> state.addAll(List.of(address(n), address(n + 1))))
                .on(numbers, "kinds", n -> "key-" + n, text);
        new Cells<String>()
                .value("shipment", TypeInformation.of(Shipment.class), (state, n) -> state.update(shipment(n)))
                .value("credit", Types.LONG, (state, n) -> state.update(n % 3 == 0 ? null : 5L * n))
                .value("debit", Types.LONG, (state, n) -> state.update(n % 2 == 0 ? null : 7L * n))
                .value("old-name", TypeInformation.of(Address.class), (state, n) -> state.update(address(n)))
                .value("gone", text, (state, n) -> state.update("nobody reads this"))
                .on(numbers, "states", n -> "key-" + n, text);
        new Cells<Integer>()
                .value("row", Types.ROW(text, Types.INT, TypeInformation.of(Address.class)), (state, n) -> state.update(
                        Row.ofKind(n % 2 == 0 ? RowKind.INSERT : RowKind.DELETE,
                                "row " + n, n % 3 == 0 ? null : n, n % 5 == 0 ? null : address(n))))
                .value("tuple", Types.TUPLE(text, Types.INT, TypeInformation.of(Address.class)),
                        (state, n) -> state.update(Tuple3.of("tuple " + n, n, address(n))))
                .on(numbers, "rows", n -> n - 7, Types.INT);
    }

    private static Basket basket(int n) {
        Basket basket = new Basket();
        basket.owner = n % 6 == 0 ? null : "owner \u00e9 " + n;
        basket.tags = n % 7 == 0 ? null : new ArrayList<>();
        basket.items = n % 8 == 1 ? null : new ArrayList<>();
        basket.counts = n % 5 == 0 ? null : new HashMap<>();
        basket.places = n % 9 == 2 ? null : new HashMap<>();
        basket.marks = n % 11 == 3 ? null : new HashSet<>();
        for (int i = 0; i < n % 4; i++) {
            if (basket.tags != null) {
                basket.tags.add(i == 1 ? null : "tag \"" + i + "\" \u20ac of " + n);
            }
            if (basket.items != null) {
                basket.items.add(i == 2 ? null : item(n + i));
            }
            if (basket.counts != null) {
                basket.counts.put("count '" + i, i == 2 ? null : Long.MAX_VALUE - n * i);
            }
            if (basket.places != null) {
                basket.places.put(i - 1, item(n * i));
            }
            if (basket.marks != null) {
                basket.marks.add(n * i);
            }
        }
        return basket;
    }

    private static Item item(int n) {
        Item item = new Item();
        item.name = n % 3 == 0 ? null : "item " + n;
        item.price = n * 1_000_000_007L;
        item.weight = n % 2 == 0 ? null : n / 8.0;
        return item;
    }

    private static Ticket ticket(int n) {
        ArrayList<String> labels = n % 4 == 0 ? null : new ArrayList<>(List.of("label " + n, "other"));
        return new Ticket(n % 5 == 0 ? null : "ticket " + n, n, n % 2 == 0 ? null : 10L * n,
                n % 3 == 0 ? null : new BigDecimal(n + ".50"), labels);
    }

    private static Account account(int n) {
        Account account = n % 3 == 0 ? premium(n) : new Account();
        account.owner = n % 4 == 0 ? null : "owner " + n;
        account.level = n * 3;
        account.visits = n % 5 == 0 ? null : n;
        account.note = "note " + n;
        if (n % 7 != 0) {
            account.home = new Account.Home();
            account.home.city = "city " + n;
            account.home.zip = 10_000 + n;
        }
        return account;
    }

    private static Premium premium(int n) {
        Premium premium = new Premium();
        premium.discount = n;
        premium.manager = n % 2 == 0 ? null : "manager " + n;
        return premium;
    }

    private static Place place(int n) {
        Spot spot = new Spot();
        spot.angle = 90L * n;
        Place place = n % 2 == 0 ? new Place() : spot;
        place.name = "place " + n;
        place.floor = n % 4 == 0 ? null : n;
        return place;
    }

    private static Address address(int n) {
        Address address = new Address();
        address.city = "city " + n;
        address.zip = n;
        return address;
    }

    private static Shipment shipment(int n) {
        Shipment shipment = new Shipment();
        shipment.code = "code " + n;
        shipment.customer = n % 2 == 0 ? null : "customer " + n;
        shipment.weight = 1L << n;
        shipment.to = n % 5 == 0 ? null : address(n);
        return shipment;
    }
}
