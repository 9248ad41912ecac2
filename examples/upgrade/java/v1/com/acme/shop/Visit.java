package com.acme.shop;

import java.util.ArrayList;
import java.util.List;

/** A look at a page. Not a POJO to Flink, so Kryo writes it: its fields are private, and it has no setters. */
public final class Visit {
    private final String page;
    private final long millis;
    private final List<String> articles;

    public Visit(String page, long millis, List<String> articles) {
        this.page = page;
        this.millis = millis;
        this.articles = new ArrayList<>(articles);
    }
}
