package com.acme.orders;

import java.time.Instant;

/**
 * An order as the second release keeps it. Against the first: {@code customer} is called {@code customerId},
 * {@code amount} is a DOUBLE in euros and no longer a BIGINT in cents, {@code priority} is new, {@code note} is gone.
 */
public class Order {
    public String id;
    public String customerId;
    public double amount;
    public int quantity;
    public int priority;
    public Instant updatedAt;
    public Address address;
    public OrderStatus status;

    public Order() {}

    public static Order of(OrderEvent event) {
        Order order = new Order();
        order.id = event.orderId;
        order.customerId = event.customer;
        order.amount = event.cents / 100.0;
        order.quantity = event.quantity;
        order.priority = event.quantity > 10 ? 1 : 0;
        order.updatedAt = event.at;
        order.address = event.address;
        order.status = event.status;
        return order;
    }
}
