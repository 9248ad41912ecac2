package compat;

import static compat.Composites.LONG;
import static compat.Composites.STRING;
import static compat.Composites.row;
import static compat.Composites.tuple;

import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.java.tuple.Tuple2;

/** Serializers as users write them: simple, with a snapshot of their own, and composite with outer data. */
@SuppressWarnings({"rawtypes", "unchecked"})
final class Customs {
    private static final int LEVELS = 4;
    // Its snapshot has only the method up to 1.18, which 2.x does not know any more.
    private static final String OLD_STYLE = "compat.OldStyleSerializer";

    private Customs() {}

    static void add() {
        for (int level = 1; level <= LEVELS; level++) {
            int number = level;
            Catalog.add("custom", "level-" + level, () -> new LevelSerializer(number));
            Catalog.add("custom-list", "level-" + level, () -> new ListSerializer<>(new LevelSerializer(number)));
        }
        for (int first = 1; first <= LEVELS; first++) {
            for (int second = 1; second <= LEVELS; second++) {
                int left = first;
                int right = second;
                Catalog.add("custom-tuple", first + "-" + second, () -> tuple(
                        Tuple2.class, new LevelSerializer(left), new LevelSerializer(right)));
            }
        }
        Catalog.add("custom", "successor", SuccessorSerializer::new);
        if (Made.exists(OLD_STYLE)) {
            for (int level = 1; level <= LEVELS; level++) {
                int number = level;
                Catalog.add("custom-old-style", "level-" + level, () -> Made.make(OLD_STYLE, number));
            }
        }
        Catalog.add("custom-simple", "plain", PlainSerializer::new);
        Catalog.add("custom-simple", "long", () -> LongSerializer.INSTANCE);
        TypeSerializer[] inner = {LONG, STRING, row(true, LONG), row(false, LONG)};
        for (int unit = 1; unit <= LEVELS; unit++) {
            for (int i = 0; i < inner.length; i++) {
                int number = unit;
                TypeSerializer nested = inner[i];
                Catalog.add("custom-composite", number + "-" + i, () -> new BoxSerializer(number, nested));
            }
        }
    }
}
