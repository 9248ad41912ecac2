package compat;

import static compat.Composites.INT;
import static compat.Composites.LONG;
import static compat.Composites.STRING;

import java.io.Serializable;
import java.util.Comparator;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;

/** Serializers of the table runtime. */
final class Tables {
    private static final String TYPES = "table.runtime.typeutils.";
    private static final String VIEWS = "table.dataview.";
    private static final DataType[] COLUMNS = {
        DataTypes.BIGINT(), DataTypes.BIGINT().notNull(), DataTypes.INT(), DataTypes.STRING(), DataTypes.VARCHAR(10),
        DataTypes.VARCHAR(20), DataTypes.CHAR(10), DataTypes.DECIMAL(10, 2), DataTypes.DECIMAL(12, 2),
        DataTypes.DECIMAL(10, 3), DataTypes.DECIMAL(38, 2), DataTypes.TIMESTAMP(3), DataTypes.TIMESTAMP(6),
        DataTypes.TIMESTAMP_LTZ(3), DataTypes.DATE(), DataTypes.TIME(0), DataTypes.BYTES(), DataTypes.BOOLEAN(),
        DataTypes.DOUBLE(), DataTypes.FLOAT(), DataTypes.ARRAY(DataTypes.INT()), DataTypes.ARRAY(DataTypes.BIGINT()),
        DataTypes.ARRAY(DataTypes.INT().notNull()), DataTypes.MAP(DataTypes.STRING(), DataTypes.INT()),
        DataTypes.MAP(DataTypes.STRING(), DataTypes.BIGINT()), DataTypes.MAP(DataTypes.INT(), DataTypes.INT()),
        DataTypes.MULTISET(DataTypes.STRING()), DataTypes.ROW(DataTypes.FIELD("a", DataTypes.INT())),
        DataTypes.ROW(DataTypes.FIELD("b", DataTypes.INT())), DataTypes.ROW(DataTypes.FIELD("a", DataTypes.BIGINT())),
        DataTypes.ROW(DataTypes.FIELD("a", DataTypes.INT()), DataTypes.FIELD("b", DataTypes.INT())),
        DataTypes.INTERVAL(DataTypes.YEAR()), DataTypes.INTERVAL(DataTypes.SECOND(3)),
    };

    private Tables() {}

    static void add() {
        for (DataType column : COLUMNS) {
            addRow(column.toString().replace('`', '\''), column);
        }
        addRow("none");
        addRow("BIGINT, STRING", DataTypes.BIGINT(), DataTypes.STRING());
        addRow("STRING, BIGINT", DataTypes.STRING(), DataTypes.BIGINT());
        addRow("BIGINT, STRING, INT", DataTypes.BIGINT(), DataTypes.STRING(), DataTypes.INT());
        for (int fields : new int[] {1, 2}) {
            Catalog.add("binary-row", "" + fields, () -> Made.make(TYPES + "BinaryRowDataSerializer", fields));
        }
        addArray("INT", DataTypes.INT());
        addArray("BIGINT", DataTypes.BIGINT());
        addArray("INT NOT NULL", DataTypes.INT().notNull());
        addArray("ARRAY<INT>", DataTypes.ARRAY(DataTypes.INT()));
        addMap("STRING, INT", DataTypes.STRING(), DataTypes.INT());
        addMap("STRING, BIGINT", DataTypes.STRING(), DataTypes.BIGINT());
        addMap("INT, INT", DataTypes.INT(), DataTypes.INT());
        for (int[] each : new int[][] {{10, 2}, {12, 2}, {10, 3}, {38, 2}}) {
            Catalog.add("decimal", each[0] + "," + each[1], () ->
                    Made.make(TYPES + "DecimalDataSerializer", each[0], each[1]));
        }
        for (int precision : new int[] {3, 6, 0, 9}) {
            Catalog.add("timestamp", "" + precision, () -> Made.make(TYPES + "TimestampDataSerializer", precision));
        }
        addContainers();
    }

    private static void addContainers() {
        Catalog.add("linked-list", "long", () -> Made.make(TYPES + "LinkedListSerializer", LONG, true));
        Catalog.add("linked-list", "long-without-mask", () -> Made.make(TYPES + "LinkedListSerializer", LONG, false));
        Catalog.add("linked-list", "string", () -> Made.make(TYPES + "LinkedListSerializer", STRING, true));
        Catalog.add("linked-list", "string-without-mask", () ->
                Made.make(TYPES + "LinkedListSerializer", STRING, false));
        Catalog.add("sorted-map", "up", () -> Made.make(TYPES + "SortedMapSerializer", new Order(1), LONG, STRING));
        Catalog.add("sorted-map", "down", () -> Made.make(TYPES + "SortedMapSerializer", new Order(-1), LONG, STRING));
        Catalog.add("sorted-map", "up-int", () -> Made.make(TYPES + "SortedMapSerializer", new Order(1), INT, STRING));
        Catalog.add("sorted-map", "up-long", () -> Made.make(TYPES + "SortedMapSerializer", new Order(1), LONG, LONG));
        Catalog.add("sorted-map", "natural", () -> Made.make(
                TYPES + "SortedMapSerializer", Comparator.naturalOrder(), LONG, STRING));
        Catalog.add("sorted-map", "without-equals", () -> Made.make(
                TYPES + "SortedMapSerializer", new Unequal(), LONG, STRING));
        Catalog.add("view", "list-long", () -> Made.make(VIEWS + "ListViewSerializer", new ListSerializer<>(LONG)));
        Catalog.add("view", "map", () -> Made.make(VIEWS + "MapViewSerializer", new MapSerializer<>(LONG, STRING)));
        Catalog.add("view", "list-string", () -> Made.make(VIEWS + "ListViewSerializer", new ListSerializer<>(STRING)));
        Catalog.add("view", "map-long", () -> Made.make(VIEWS + "MapViewSerializer", new MapSerializer<>(LONG, LONG)));
        Catalog.add("null-aware-map", "long-string", () -> Made.make(VIEWS + "NullAwareMapSerializer", LONG, STRING));
        Catalog.add("null-aware-map", "long-long", () -> Made.make(VIEWS + "NullAwareMapSerializer", LONG, LONG));
        Catalog.add("raw", "long", () -> Made.make(TYPES + "RawValueDataSerializer", LONG));
        Catalog.add("raw", "string", () -> Made.make(TYPES + "RawValueDataSerializer", STRING));
        for (int fields : new int[] {1, 2}) {
            Catalog.add("window-key", "" + fields, () -> Made.make(
                    TYPES + "WindowKeySerializer", Made.make(TYPES + "BinaryRowDataSerializer", fields)));
        }
        Catalog.add("window-key", "row-data", () -> Made.make(TYPES + "WindowKeySerializer", row(DataTypes.BIGINT())));
        Catalog.add("window-key", "row-data-int", () -> Made.make(TYPES + "WindowKeySerializer", row(DataTypes.INT())));
        addExternal("BIGINT", DataTypes.BIGINT(), false);
        addExternal("STRING", DataTypes.STRING(), false);
        addExternal("BIGINT internal", DataTypes.BIGINT(), true);
        addExternal("BIGINT NOT NULL", DataTypes.BIGINT().notNull(), false);
        addExternal("ROW(a)", DataTypes.ROW(DataTypes.FIELD("a", DataTypes.INT())), false);
        addExternal("ROW(b)", DataTypes.ROW(DataTypes.FIELD("b", DataTypes.INT())), false);
    }

    private static void addRow(String name, DataType... columns) {
        Catalog.add("row-data", name, () -> row(columns));
    }

    private static TypeSerializer<?> row(DataType... columns) throws Exception {
        LogicalType[] types = new LogicalType[columns.length];
        for (int i = 0; i < types.length; i++) {
            types[i] = columns[i].getLogicalType();
        }
        return Made.make(TYPES + "RowDataSerializer", (Object) types);
    }

    private static void addArray(String name, DataType element) {
        Catalog.add("array-data", name, () -> Made.make(TYPES + "ArrayDataSerializer", element.getLogicalType()));
    }

    private static void addMap(String name, DataType key, DataType value) {
        Catalog.add("map-data", name, () -> Made.make(
                TYPES + "MapDataSerializer", key.getLogicalType(), value.getLogicalType()));
    }

    private static void addExternal(String name, DataType type, boolean internal) {
        Catalog.add("external", name, () -> (TypeSerializer<?>)
                Class.forName("org.apache.flink." + TYPES + "ExternalSerializer")
                        .getMethod("of", DataType.class, boolean.class)
                        .invoke(null, type, internal));
    }

    /** A comparator that is equal to nothing but itself. */
    public static final class Unequal implements Comparator<Object>, Serializable {
        private static final long serialVersionUID = 1;

        @Override
        public int compare(Object left, Object right) {
            return String.valueOf(left).compareTo(String.valueOf(right));
        }
    }

    /** A comparator that knows when it is equal to another one. */
    public static final class Order implements Comparator<Object>, Serializable {
        private static final long serialVersionUID = 1;
        private final int sign;

        Order(int sign) {
            this.sign = sign;
        }

        @Override
        public int compare(Object left, Object right) {
            return sign * String.valueOf(left).compareTo(String.valueOf(right));
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Order && ((Order) other).sign == sign;
        }

        @Override
        public int hashCode() {
            return sign;
        }
    }
}
