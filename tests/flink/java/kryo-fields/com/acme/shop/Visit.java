package com.acme.shop;

import java.util.ArrayList;
import java.util.List;

/** As in the upgrade example, by Kryo, with one more field: no serializer snapshot says so. */
public final class Visit {
    private final String agent;
    private final String page;
    private final long millis;
    private final List<String> articles;

    public Visit(String page, long millis, List<String> articles) {
        this.agent = "none";
        this.page = page;
        this.millis = millis;
        this.articles = new ArrayList<>(articles);
    }
}
