package org.apache.flink.types;

public class IntValue {}
