package com.acme.orders;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.java.tuple.Tuple2;

/** The price list: the same on every run. */
final class Prices {
    static final int ARTICLES = 12;

    private Prices() {}

    static String article(int number) {
        return number == 5 ? "café-5" : "article-" + number;
    }

    static List<Tuple2<String, Double>> all() {
        List<Tuple2<String, Double>> prices = new ArrayList<>();
        for (int number = 0; number < ARTICLES; number++) {
            prices.add(Tuple2.of(article(number), number * 12.5 - 1));
        }
        return prices;
    }
}
