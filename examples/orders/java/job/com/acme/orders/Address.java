package com.acme.orders;

import java.io.Serializable;

/** Where an order goes; {@code zip} may be unknown. */
public class Address implements Serializable {
    public String street;
    public String city;
    public String zip;

    public Address() {}

    public Address(String street, String city, String zip) {
        this.street = street;
        this.city = city;
        this.zip = zip;
    }
}
