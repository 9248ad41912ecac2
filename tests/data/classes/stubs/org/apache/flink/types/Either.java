package org.apache.flink.types;

public class Either<L, R> {}
