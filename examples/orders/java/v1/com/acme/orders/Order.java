package com.acme.orders;

import java.time.Instant;

/** An order as the first release of the job keeps it: the amount is a whole number of cents. */
public class Order {
    public String id;
    public String customer;
    public long amount;
    public int quantity;
    public String note;
    public Instant updatedAt;
    public Address address;
    public OrderStatus status;

    public Order() {}

    public static Order of(OrderEvent event) {
        Order order = new Order();
        order.id = event.orderId;
        order.customer = event.customer;
        order.amount = event.cents;
        order.quantity = event.quantity;
        order.note = event.note;
        order.updatedAt = event.at;
        order.address = event.address;
        order.status = event.status;
        return order;
    }
}
