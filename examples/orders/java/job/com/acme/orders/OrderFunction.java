package com.acme.orders;

import java.time.Duration;
import java.time.Instant;
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

/** Keeps every order, its history and its reminders. */
class OrderFunction extends KeyedProcessFunction<String, OrderEvent, String> {
    private static final Duration PAYMENT_TERM = Duration.ofDays(30);
    private static final long ARCHIVE = Instant.parse("2126-01-01T00:00:00Z").toEpochMilli();
    private static final StateTtlConfig FORGET_LATE = StateTtlConfig.newBuilder(Duration.ofDays(36_500)).build();

    private transient ValueState<Order> order;
    private transient ListState<String> history;
    private transient MapState<String, Long> quantities;
    private transient ValueState<Instant> lastSeen;

    @Override
    public void open(OpenContext context) {
        order = getRuntimeContext().getState(new ValueStateDescriptor<>("order", TypeInformation.of(Order.class)));
        history = getRuntimeContext().getListState(new ListStateDescriptor<>("history", Types.STRING));
        quantities = getRuntimeContext().getMapState(
                new MapStateDescriptor<>("quantities", Types.STRING, Types.LONG));
        ValueStateDescriptor<Instant> seen = new ValueStateDescriptor<>("last-seen", Types.INSTANT);
        seen.enableTimeToLive(FORGET_LATE);
        lastSeen = getRuntimeContext().getState(seen);
    }

    @Override
    public void processElement(OrderEvent event, Context context, Collector<String> out) throws Exception {
        Order before = order.value();
        if (before != null) {
            context.timerService().deleteEventTimeTimer(paymentDue(before.updatedAt));
        }
        if (event.status == OrderStatus.NEW || event.status == OrderStatus.CANCELLED) {
            context.timerService().registerEventTimeTimer(paymentDue(event.at));
        }
        context.timerService().registerProcessingTimeTimer(ARCHIVE + event.orderId.length() * 1_000L);
        order.update(Order.of(event));
        history.add(event.status + " " + event.article + ", " + event.customer);
        Long sum = quantities.get(event.article);
        quantities.put(event.article, (sum == null ? 0 : sum) + event.quantity);
        lastSeen.update(event.at);
    }

    private static long paymentDue(Instant updatedAt) {
        return updatedAt.plus(PAYMENT_TERM).toEpochMilli();
    }
}
