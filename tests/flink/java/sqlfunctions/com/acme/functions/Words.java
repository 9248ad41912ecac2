package com.acme.functions;

import org.apache.flink.table.functions.TableFunction;

/** The words of a text. */
public class Words extends TableFunction<String> {
    public void eval(String text) {
        if (text != null) {
            for (String word : text.split(" ")) {
                collect(word);
            }
        }
    }
}
