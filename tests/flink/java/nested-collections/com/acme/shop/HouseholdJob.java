package com.acme.shop;

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
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Keeps POJOs whose inner POJOs have generic collections; the code is the same on Flink 1.20 and 2.x. */
public final class HouseholdJob {
    /** How many records the source emits. */
    public static final long RECORDS = 20;

    private HouseholdJob() {}

    public static void build(StreamExecutionEnvironment env) {
        List<List<Integer>> splits = List.of(new ArrayList<>(), new ArrayList<>());
        for (int n = 0; n < RECORDS; n++) {
            splits.get(n % 2).add(n);
        }
        env.fromSource(new ReplaySource<>(splits), WatermarkStrategy.noWatermarks(), "numbers", Types.INT)
                .uid("numbers")
                .keyBy(n -> "household-" + n % 10, Types.STRING)
                .process(new Remember(), Types.STRING)
                .name("households")
                .uid("households");
    }

    private static Place place(String city, int n) {
        Place place = new Place();
        place.city = city;
        place.tags = n % 3 == 0 ? null : new ArrayList<>(List.of("tag-" + n, "€"));
        place.visits = new HashMap<>();
        place.visits.put(city, (long) n);
        return place;
    }

    private static final class Remember extends KeyedProcessFunction<String, Integer, String> {
        private transient ValueState<Household> household;
        private transient ListState<Household> history;
        private transient ValueState<List<String>> names;
        private transient ValueState<Map<String, Long>> counts;

        @Override
        public void open(OpenContext context) {
            household = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>("household", TypeInformation.of(Household.class)));
            history = getRuntimeContext()
                    .getListState(new ListStateDescriptor<>("history", TypeInformation.of(Household.class)));
            names = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>("names", TypeInformation.of(new TypeHint<List<String>>() {})));
            counts = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>(
                            "counts", TypeInformation.of(new TypeHint<Map<String, Long>>() {})));
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
            Household known = new Household();
            known.name = context.getCurrentKey();
            known.members = new ArrayList<>(List.of("a-" + n, "b-" + n));
            known.home = n % 4 == 0 ? null : place("city-" + n, n);
            known.others = new Place[] {place("x-" + n, n), place("y-" + n, n + 1)};
            household.update(known);
            history.add(known);
            names.update(new ArrayList<>(List.of("n-" + n, "\"quoted\"")));
            counts.update(new HashMap<>(Map.of("c-" + n, (long) n)));
        }
    }
}
