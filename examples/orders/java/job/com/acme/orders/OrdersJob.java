package com.acme.orders;

import java.time.Duration;
import java.util.Collections;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.BroadcastProcessFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.util.Collector;

/** The job of the example: orders, revenue per customer and minute, counters, and a broadcast price list. */
public final class OrdersJob {
    /** How many records the sources emit altogether. */
    public static final long RECORDS =
            OrderEvents.splits().stream().mapToLong(split -> split.size()).sum() + Prices.ARTICLES;

    static final MapStateDescriptor<String, Double> PRICES =
            new MapStateDescriptor<>("prices", Types.STRING, Types.DOUBLE);

    private OrdersJob() {}

    public static void main(String[] args) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setMaxParallelism(128);
        build(env);
        env.execute("orders");
    }

    public static void build(StreamExecutionEnvironment env) {
        DataStream<OrderEvent> events = env.fromSource(
                        new ReplaySource<>(OrderEvents.splits()),
                        WatermarkStrategy.<OrderEvent>noWatermarks()
                                .withTimestampAssigner((event, previous) -> event.at.toEpochMilli()),
                        "order-source",
                        TypeInformation.of(OrderEvent.class))
                .uid("order-source");
        DataStream<Tuple2<String, Double>> prices = env.fromSource(
                        new ReplaySource<>(Collections.singletonList(Prices.all())),
                        WatermarkStrategy.noWatermarks(),
                        "price-source",
                        Types.<Tuple2<String, Double>>TUPLE(Types.STRING, Types.DOUBLE))
                .uid("price-source")
                .setParallelism(1);

        events.process(new OrderCounter()).name("order-counter").uid("order-counter");
        events.keyBy(event -> event.orderId, Types.STRING)
                .process(new OrderFunction(), Types.STRING)
                .name("orders")
                .uid("orders");
        events.keyBy(event -> event.customer, Types.STRING)
                .window(TumblingEventTimeWindows.of(Duration.ofMinutes(1)))
                .aggregate(new Revenue(), Types.TUPLE(Types.LONG, Types.INT), Types.LONG)
                .name("revenue-per-minute")
                .uid("revenue-per-minute");
        events.connect(prices.broadcast(PRICES)).process(new Pricing()).name("pricing").uid("pricing");
    }

    /** Sum of the cents and number of events. */
    private static final class Revenue implements AggregateFunction<OrderEvent, Tuple2<Long, Integer>, Long> {
        @Override
        public Tuple2<Long, Integer> createAccumulator() {
            return Tuple2.of(0L, 0);
        }

        @Override
        public Tuple2<Long, Integer> add(OrderEvent event, Tuple2<Long, Integer> sum) {
            return Tuple2.of(sum.f0 + event.cents, sum.f1 + 1);
        }

        @Override
        public Long getResult(Tuple2<Long, Integer> sum) {
            return sum.f0;
        }

        @Override
        public Tuple2<Long, Integer> merge(Tuple2<Long, Integer> a, Tuple2<Long, Integer> b) {
            return Tuple2.of(a.f0 + b.f0, a.f1 + b.f1);
        }
    }

    /** Keeps the price list in broadcast state. */
    private static final class Pricing extends BroadcastProcessFunction<OrderEvent, Tuple2<String, Double>, String> {
        @Override
        public void processElement(OrderEvent event, ReadOnlyContext context, Collector<String> out) throws Exception {
            Double price = context.getBroadcastState(PRICES).get(event.article);
            if (price != null) {
                out.collect(event.orderId + " " + price * event.quantity);
            }
        }

        @Override
        public void processBroadcastElement(Tuple2<String, Double> price, Context context, Collector<String> out)
                throws Exception {
            context.getBroadcastState(PRICES).put(price.f0, price.f1);
        }
    }
}
