package com.acme.shop;

import java.util.List;

/** A POJO with generic collections of its own, and in the POJOs in it. */
public class Household {
    public String name;
    public List<String> members;
    public Place home;
    public Place[] others;

    public Household() {}
}
