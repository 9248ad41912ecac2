package com.acme.orders;

import java.io.Serializable;
import java.time.Instant;

/** One change of an order, as it comes in. */
public class OrderEvent implements Serializable {
    public String orderId;
    public String customer;
    public String article;
    public int quantity;
    public long cents;
    public String note;
    public Instant at;
    public Address address;
    public OrderStatus status;

    public OrderEvent() {}
}
