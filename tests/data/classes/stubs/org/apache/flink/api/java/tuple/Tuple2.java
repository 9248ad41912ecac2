package org.apache.flink.api.java.tuple;

public class Tuple2<T0, T1> extends Tuple {}
