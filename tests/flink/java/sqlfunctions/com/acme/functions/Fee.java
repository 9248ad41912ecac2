package com.acme.functions;

import org.apache.flink.table.functions.ScalarFunction;

/** Three percent of an amount. */
public class Fee extends ScalarFunction {
    public Long eval(Long amount) {
        return amount == null ? null : amount * 3 / 100;
    }
}
