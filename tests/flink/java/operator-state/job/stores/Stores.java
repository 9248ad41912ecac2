package stores;

import com.acme.orders.ReplaySource;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.BroadcastProcessFunction;
import org.apache.flink.util.Collector;

/** An operator whose list and broadcast states are listed one by one, each with what a number puts into it. */
final class Stores extends BroadcastProcessFunction<Integer, Integer, String> implements CheckpointedFunction {
    static final int NUMBERS = 24;
    static final int BROADCASTS = 6;

    /** What belongs to a number. */
    interface Make<T> extends Serializable {
        T make(int n);
    }

    private static final class Store<T> implements Serializable {
        final ListStateDescriptor<T> descriptor;
        final boolean union;
        final Make<T> make;
        transient ListState<T> state;

        Store(ListStateDescriptor<T> descriptor, boolean union, Make<T> make) {
            this.descriptor = descriptor;
            this.union = union;
            this.make = make;
        }

        void open(FunctionInitializationContext context) throws Exception {
            state = union
                    ? context.getOperatorStateStore().getUnionListState(descriptor)
                    : context.getOperatorStateStore().getListState(descriptor);
        }

        void fill(List<Integer> numbers) throws Exception {
            List<T> values = new ArrayList<>();
            numbers.forEach(n -> values.add(make.make(n)));
            state.update(values);
        }
    }

    private static final class Rules<K, V> implements Serializable {
        final MapStateDescriptor<K, V> descriptor;
        final Make<K> key;
        final Make<V> value;

        Rules(MapStateDescriptor<K, V> descriptor, Make<K> key, Make<V> value) {
            this.descriptor = descriptor;
            this.key = key;
            this.value = value;
        }

        void fill(Context context, int n) throws Exception {
            context.getBroadcastState(descriptor).put(key.make(n), value.make(n));
        }
    }

    private final ArrayList<Store<?>> stores = new ArrayList<>();
    private final ArrayList<Rules<?, ?>> rules = new ArrayList<>();
    private transient List<Integer> seen;

    <T> Stores split(String name, TypeInformation<T> type, Make<T> make) {
        stores.add(new Store<>(new ListStateDescriptor<>(name, type), false, make));
        return this;
    }

    <T> Stores union(String name, TypeInformation<T> type, Make<T> make) {
        stores.add(new Store<>(new ListStateDescriptor<>(name, type), true, make));
        return this;
    }

    <K, V> Stores broadcast(
            String name, TypeInformation<K> key, TypeInformation<V> value, Make<K> makeKey, Make<V> makeValue) {
        rules.add(new Rules<>(new MapStateDescriptor<>(name, key, value), makeKey, makeValue));
        return this;
    }

    void on(StreamExecutionEnvironment env, String uid) {
        DataStream<Integer> numbers = numbers(env, "numbers", NUMBERS);
        MapStateDescriptor<?, ?>[] descriptors =
                rules.stream().map(each -> each.descriptor).toArray(MapStateDescriptor<?, ?>[]::new);
        numbers.connect(numbers(env, "rules", BROADCASTS).broadcast(descriptors))
                .process(this, Types.STRING)
                .name(uid)
                .uid(uid);
    }

    private static DataStream<Integer> numbers(StreamExecutionEnvironment env, String uid, int count) {
        List<List<Integer>> splits = List.of(new ArrayList<>(), new ArrayList<>());
        for (int n = 0; n < count; n++) {
            splits.get(n % 2).add(n);
        }
        return env.fromSource(new ReplaySource<>(splits), WatermarkStrategy.noWatermarks(), uid, Types.INT).uid(uid);
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        seen = new ArrayList<>();
        for (Store<?> store : stores) {
            store.open(context);
        }
    }

    @Override
    public void processElement(Integer n, ReadOnlyContext context, Collector<String> out) {
        seen.add(n);
    }

    @Override
    public void processBroadcastElement(Integer n, Context context, Collector<String> out) throws Exception {
        for (Rules<?, ?> each : rules) {
            each.fill(context, n);
        }
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        if (!seen.isEmpty()) {
            for (Store<?> store : stores) {
                store.fill(seen);
            }
        }
    }
}
