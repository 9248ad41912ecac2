package types;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Puts one group of samples into value states. */
class ValueStates<K> extends KeyedProcessFunction<K, Integer, String> {
    private final String group;
    private transient List<Samples.Sample> samples;
    private transient List<ValueState<Object>> states;

    ValueStates(String group) {
        this.group = group;
    }

    @Override
    public void open(OpenContext context) {
        samples = Samples.of(group);
        states = new ArrayList<>();
        samples.forEach(sample -> states.add(getRuntimeContext().getState(sample.descriptor)));
    }

    @Override
    public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
        for (int i = 0; i < states.size(); i++) {
            states.get(i).update(samples.get(i).values.apply(n));
        }
    }
}
