package com.acme.shop;

import java.util.List;
import java.util.Map;

/** A POJO inside another one, also as element of an array. */
public class Place {
    public String city;
    public List<String> tags;
    public Map<String, Long> visits;

    public Place() {}
}
