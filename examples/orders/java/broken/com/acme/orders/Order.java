package com.acme.orders;

import java.time.Instant;

/** The second release with a mistake: it needs a price service, which nobody has configured. */
public class Order {
    public String id;
    public String customerId;
    public double amount;
    public int quantity;
    public int priority;
    public Instant updatedAt;
    public Address address;
    public OrderStatus status;

    public Order() {
        if (System.getProperty("price.service") == null) {
            throw new IllegalStateException("no price service is configured");
        }
    }

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
