package com.acme.shop;

import java.util.List;
import java.util.Map;

/** A POJO with a generic list and a generic map: Kryo writes both in Flink 1.x, Flink 2.x has serializers for them. */
public class Customer {
    public String name;
    public List<String> tags;
    public Map<String, Long> articles;

    public Customer() {}
}
