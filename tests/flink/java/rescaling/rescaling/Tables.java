package rescaling;

import java.math.BigDecimal;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.table.data.DecimalData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.TimestampType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.types.RowKind;

/** Keys and values as operators of SQL have them: rows in Flink's binary form. */
final class Tables {
    private static final InternalTypeInfo<RowData> KEYS =
            InternalTypeInfo.of(RowType.of(VarCharType.STRING_TYPE, new BigIntType(), new IntType(false)));

    static final TypeInformation<RowData> VALUES = InternalTypeInfo.of(RowType.of(
            new IntType(), VarCharType.STRING_TYPE, new DecimalType(20, 2), new TimestampType(9)));

    private Tables() {}

    static KeyedStream<Integer, RowData> keyed(DataStream<Integer> numbers) {
        return numbers.keyBy(Tables::key, KEYS);
    }

    private static RowData key(int n) {
        // texts of at most 7 bytes lie inside the fixed part of the row, longer ones behind it
        StringData text = n % 6 == 0 ? null : StringData.fromString(n % 2 == 0 ? Keys.text(n) : "long " + Keys.text(n));
        return binary(KEYS, RowKind.INSERT, text, n % 5 == 0 ? null : n * 3_000_000_000L, n);
    }

    static RowData value(int n) {
        return binary((InternalTypeInfo<RowData>) VALUES, n % 4 == 1 ? RowKind.UPDATE_AFTER : RowKind.INSERT,
                n % 3 == 0 ? null : n, n % 4 == 0 ? null : StringData.fromString(Keys.text(n)),
                DecimalData.fromBigDecimal(BigDecimal.valueOf(n * 12_345L, 2), 20, 2),
                n % 5 == 0 ? null : TimestampData.fromEpochMillis(n * 1_000_000_007L, n));
    }

    private static RowData binary(InternalTypeInfo<RowData> type, RowKind kind, Object... fields) {
        // a serializer reuses its row, and this one belongs to all tasks of the JVM
        RowDataSerializer serializer = (RowDataSerializer) type.toRowSerializer().duplicate();
        RowData row = serializer.toBinaryRow(GenericRowData.ofKind(kind, fields));
        row.setRowKind(kind);
        return row;
    }
}
