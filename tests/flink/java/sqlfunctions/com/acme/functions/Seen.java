package com.acme.functions;

import org.apache.flink.table.api.dataview.MapView;
import org.apache.flink.table.functions.AggregateFunction;

/** The number of different texts, which are kept in a state of their own. */
public class Seen extends AggregateFunction<Long, Seen.Texts> {
    /** What the function keeps for a key. */
    public static class Texts {
        public long number;
        public MapView<String, Boolean> texts = new MapView<>();
    }

    @Override
    public Texts createAccumulator() {
        return new Texts();
    }

    public void accumulate(Texts seen, String text) throws Exception {
        if (text != null && !seen.texts.contains(text)) {
            seen.texts.put(text, true);
            seen.number++;
        }
    }

    @Override
    public Long getValue(Texts seen) {
        return seen.number;
    }
}
