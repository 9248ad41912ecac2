package com.acme.shop;

import java.util.ArrayList;
import java.util.List;

/** A look at a page; a POJO to Flink. */
public final class Visit {
    public String page;
    public long millis;
    public List<String> articles;

    public Visit() {}

    public Visit(String page, long millis, List<String> articles) {
        this.page = page;
        this.millis = millis;
        this.articles = new ArrayList<>(articles);
    }
}
