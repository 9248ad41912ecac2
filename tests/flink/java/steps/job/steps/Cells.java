package steps;

import java.io.Serializable;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RuntimeContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import com.acme.orders.ReplaySource;

/** An operator whose states are listed one by one, each with what a number puts into it; see {@code on}. */
final class Cells<K> extends KeyedProcessFunction<K, Integer, String> {
    static final int NUMBERS = 24;
    private static final long FAR = Instant.parse("2126-01-01T00:00:00Z").toEpochMilli();

    /** Puts what belongs to a number into a state of its key. */
    interface Fill<S extends State> extends Serializable {
        void fill(S state, int n) throws Exception;
    }

    private interface Register<S extends State> extends Serializable {
        S register(RuntimeContext context);
    }

    private static final class Cell<S extends State> implements Serializable {
        final Register<S> register;
        final Fill<S> fill;
        transient S state;

        Cell(Register<S> register, Fill<S> fill) {
            this.register = register;
            this.fill = fill;
        }

        void open(RuntimeContext context) {
            state = register.register(context);
        }

        void fill(int n) throws Exception {
            fill.fill(state, n);
        }
    }

    private final ArrayList<Cell<?>> cells = new ArrayList<>();
    private long ttlDays;
    private boolean timers;

    static DataStream<Integer> numbers(StreamExecutionEnvironment env) {
        List<List<Integer>> splits = List.of(new ArrayList<>(), new ArrayList<>());
        for (int n = 0; n < NUMBERS; n++) {
            splits.get(n % 2).add(n);
        }
        return env.fromSource(new ReplaySource<>(splits), WatermarkStrategy.noWatermarks(), "numbers", Types.INT)
                .uid("numbers");
    }

    /** States that are listed from here on live so long; 0 is for ever. */
    Cells<K> ttl(long days) {
        ttlDays = days;
        return this;
    }

    Cells<K> timers() {
        timers = true;
        return this;
    }

    <T> Cells<K> value(String name, TypeInformation<T> type, Fill<ValueState<T>> fill) {
        ValueStateDescriptor<T> descriptor = live(new ValueStateDescriptor<>(name, type));
        cells.add(new Cell<>(context -> context.getState(descriptor), fill));
        return this;
    }

    <T> Cells<K> list(String name, TypeInformation<T> type, Fill<ListState<T>> fill) {
        ListStateDescriptor<T> descriptor = live(new ListStateDescriptor<>(name, type));
        cells.add(new Cell<>(context -> context.getListState(descriptor), fill));
        return this;
    }

    <A, B> Cells<K> map(String name, TypeInformation<A> key, TypeInformation<B> value, Fill<MapState<A, B>> fill) {
        MapStateDescriptor<A, B> descriptor = live(new MapStateDescriptor<>(name, key, value));
        cells.add(new Cell<>(context -> context.getMapState(descriptor), fill));
        return this;
    }

    private <D extends StateDescriptor<?, ?>> D live(D descriptor) {
        if (ttlDays > 0) {
            descriptor.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(ttlDays)).build());
        }
        return descriptor;
    }

    void on(DataStream<Integer> numbers, String uid, KeySelector<Integer, K> key, TypeInformation<K> type) {
        numbers.keyBy(key, type).process(this, Types.STRING).name(uid).uid(uid);
    }

    @Override
    public void open(OpenContext context) {
        cells.forEach(cell -> cell.open(getRuntimeContext()));
    }

    @Override
    public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
        for (Cell<?> cell : cells) {
            cell.fill(n);
        }
        if (timers) {
            context.timerService().registerEventTimeTimer(FAR + n % 3);
            context.timerService().registerProcessingTimeTimer(FAR + n);
        }
    }
}
