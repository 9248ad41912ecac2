package rescaling;

import java.util.List;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.types.Row;

/** One key type: a key of every number. */
final class Keys<K> {
    static final Keys<String> STRING = new Keys<>("string", Types.STRING, Keys::text);
    static final Keys<PojoIde> POJO_IDE = new Keys<>("pojo-ide", TypeInformation.of(PojoIde.class), PojoIde::of);
    static final List<Keys<?>> ALL = List.of(
            STRING,
            new Keys<>("long", Types.LONG, n -> (n % 3 - 1) * n * 1_000_000_007L + n),
            new Keys<>("integer", Types.INT, n -> n % 2 == 0 ? n : -7 * n),
            new Keys<Tuple2<String, Integer>>(
                    "tuple", Types.TUPLE(Types.STRING, Types.INT), n -> Tuple2.of(text(n % 10), n)),
            new Keys<>("row", Types.ROW(Types.STRING, Types.INT, Types.LONG),
                    n -> Row.of(n % 4 == 0 ? null : text(n), n, n % 3 == 0 ? null : n * -5_000_000_000L)),
            new Keys<>("pojo-objects", TypeInformation.of(Place.class), Place::of),
            POJO_IDE,
            new Keys<>("pojo-lombok", TypeInformation.of(PojoLombok.class), PojoLombok::of),
            new Keys<>("pojo-nested", TypeInformation.of(PojoNested.class), PojoNested::of),
            new Keys<>("record", TypeInformation.of(Visit.class), n -> new Visit(n * -3_000_000_000L, text(n % 7), n)),
            new Keys<Tuple2<Place, Long>>("tuple-of-pojo",
                    Types.TUPLE(TypeInformation.of(Place.class), Types.LONG), n -> Tuple2.of(Place.of(n), -1L - n)));

    private static final String[] WORDS = {"", "north", "süd", "東", "\uD83D\uDE80", "\0", "a b"};

    final String uid;
    private final TypeInformation<K> type;
    private final KeySelector<Integer, K> selector;

    private Keys(String uid, TypeInformation<K> type, KeySelector<Integer, K> selector) {
        this.uid = uid;
        this.type = type;
        this.selector = selector;
    }

    KeyedStream<Integer, K> of(DataStream<Integer> numbers) {
        return numbers.keyBy(selector, type);
    }

    /** Text with letters of one, two, three and four bytes. */
    static String text(int n) {
        return WORDS[n % WORDS.length] + "-" + n;
    }
}
