package org.apache.flink.api.java.tuple;

public abstract class Tuple {}
