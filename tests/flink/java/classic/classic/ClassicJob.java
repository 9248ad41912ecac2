package classic;

import com.acme.orders.ReplaySource;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.base.GenericArraySerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** States with serializers of a user: text by writeUTF, a map serializer with outer data, a generic array of both. */
public final class ClassicJob {
    private static final int NUMBERS = 12;

    /** How many records the source emits. */
    public static final long RECORDS = NUMBERS;

    private ClassicJob() {}

    public static void build(StreamExecutionEnvironment env) {
        List<Integer> all = new ArrayList<>();
        for (int n = 0; n < NUMBERS; n++) {
            all.add(n);
        }
        env.fromSource(new ReplaySource<>(List.of(all)), WatermarkStrategy.noWatermarks(), "numbers", Types.INT)
                .uid("numbers")
                .setParallelism(1)
                .keyBy(n -> "key-" + n, Types.STRING)
                .process(new Classics(), Types.STRING)
                .name("classics")
                .uid("classics");
    }

    private static final class Classics extends KeyedProcessFunction<String, Integer, String> {
        private transient ValueState<String> note;
        private transient ListState<String> notes;
        private transient ValueState<Map<String, Long>> totals;
        private transient ValueState<String[]> texts;

        @Override
        public void open(OpenContext context) {
            note = getRuntimeContext().getState(new ValueStateDescriptor<>("note", NoteSerializer.INSTANCE));
            notes = getRuntimeContext().getListState(new ListStateDescriptor<>("notes", NoteSerializer.INSTANCE));
            totals = getRuntimeContext().getState(new ValueStateDescriptor<>(
                    "totals", new LabelledMapSerializer<>("in cents", NoteSerializer.INSTANCE, LongSerializer.INSTANCE)));
            texts = getRuntimeContext().getState(new ValueStateDescriptor<>(
                    "texts", new GenericArraySerializer<>(String.class, NoteSerializer.INSTANCE)));
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
            note.update("note " + n + " \u20ac");
            notes.add("first " + n);
            notes.add("");
            Map<String, Long> map = new HashMap<>();
            String[] array = new String[n % 3];
            for (int i = 0; i < n % 3; i++) {
                map.put("total " + i, n == 5 && i == 1 ? null : 100L * n + i);
                array[i] = n == 8 && i == 0 ? null : "text " + n + "/" + i;
            }
            totals.update(map);
            texts.update(array);
        }
    }
}
