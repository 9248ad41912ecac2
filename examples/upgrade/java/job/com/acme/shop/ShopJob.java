package com.acme.shop;

import com.acme.orders.ReplaySource;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** The job of the page about going from Flink 1.x to 2.x: what customers looked at. The code is the same on both. */
public final class ShopJob {
    /** How many records the source emits. */
    public static final long RECORDS = 60;

    private ShopJob() {}

    public static void main(String[] args) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setMaxParallelism(128);
        build(env);
        env.execute("shop");
    }

    public static void build(StreamExecutionEnvironment env) {
        List<List<Integer>> splits = List.of(new ArrayList<>(), new ArrayList<>());
        for (int n = 0; n < RECORDS; n++) {
            splits.get(n % 2).add(n);
        }
        env.fromSource(new ReplaySource<>(splits), WatermarkStrategy.noWatermarks(), "views", Types.INT)
                .uid("views")
                .keyBy(n -> "customer-" + n % 20, Types.STRING)
                .process(new Remember(), Types.STRING)
                .name("customers")
                .uid("customers");
    }

    /** Keeps the customer and the last visits. */
    private static final class Remember extends KeyedProcessFunction<String, Integer, String> {
        private transient ValueState<Customer> customer;
        private transient ListState<Visit> visits;

        @Override
        public void open(OpenContext context) {
            customer = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>("customer", TypeInformation.of(Customer.class)));
            visits = getRuntimeContext()
                    .getListState(new ListStateDescriptor<>("visits", TypeInformation.of(Visit.class)));
        }

        @Override
        public void processElement(Integer n, Context context, Collector<String> out) throws Exception {
            Customer known = customer.value();
            if (known == null) {
                known = new Customer();
                known.name = context.getCurrentKey();
                known.tags = new ArrayList<>(List.of("new", "tag-" + n % 3));
                known.articles = new HashMap<>();
            }
            known.articles.merge("article-" + n % 4, 1L, Long::sum);
            customer.update(known);
            visits.add(new Visit("page-" + n, 1_700_000_000_000L + n, List.of("article-" + n % 4)));
        }
    }
}
