package org.apache.flink.api.java.tuple;

public class Tuple3<T0, T1, T2> extends Tuple {}
