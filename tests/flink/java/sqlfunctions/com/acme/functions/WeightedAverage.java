package com.acme.functions;

import org.apache.flink.table.functions.AggregateFunction;

/** The mean of values, each with a weight. */
public class WeightedAverage extends AggregateFunction<Long, WeightedAverage.Sums> {
    /** What the function keeps for a key. */
    public static class Sums {
        public long weighted;
        public long weights;
    }

    @Override
    public Sums createAccumulator() {
        return new Sums();
    }

    public void accumulate(Sums sums, Long value, Integer weight) {
        if (value != null && weight != null) {
            sums.weighted += value * weight;
            sums.weights += weight;
        }
    }

    @Override
    public Long getValue(Sums sums) {
        return sums.weights == 0 ? null : sums.weighted / sums.weights;
    }
}
