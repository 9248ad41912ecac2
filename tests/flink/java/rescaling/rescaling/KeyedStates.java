package rescaling;

import java.io.Serializable;
import java.time.Duration;
import java.time.Instant;
import java.util.function.IntFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** A value of some type, a list, a map, a value that lives for a time, and timers that never fire. */
final class KeyedStates<K, V> extends KeyedProcessFunction<K, Integer, String> {
    private static final long FAR = Instant.parse("2126-01-01T00:00:00Z").toEpochMilli();

    private final TypeInformation<V> type;
    private final Values<V> values;
    private transient ValueState<V> value;
    private transient ListState<V> list;
    private transient MapState<String, V> map;
    private transient ValueState<Long> living;

    /** A value of every number. */
    interface Values<V> extends IntFunction<V>, Serializable {}

    KeyedStates(TypeInformation<V> type, Values<V> values) {
        this.type = type;
        this.values = values;
    }

    @Override
    public void open(OpenContext context) {
        value = getRuntimeContext().getState(new ValueStateDescriptor<>("value", type));
        list = getRuntimeContext().getListState(new ListStateDescriptor<>("list", type));
        map = getRuntimeContext().getMapState(new MapStateDescriptor<>("map", Types.STRING, type));
        ValueStateDescriptor<Long> descriptor = new ValueStateDescriptor<>("living", Types.LONG);
        descriptor.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(36_500)).build());
        living = getRuntimeContext().getState(descriptor);
    }

    @Override
    public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
        value.update(values.apply(n));
        for (int i = 0; i < n % 4; i++) {
            list.add(values.apply(n + i));
            map.put(Keys.text(i), values.apply(n * i));
        }
        if (n % 3 == 0) {
            living.update(n * 10L);
            context.timerService().registerProcessingTimeTimer(FAR + n);
        }
        context.timerService().registerEventTimeTimer(n);
        if (n % 5 == 0) {
            context.timerService().registerEventTimeTimer(FAR - n);
        }
    }
}
