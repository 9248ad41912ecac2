package steps;

import java.util.List;
import java.util.Map;
import java.util.Set;

/** A POJO with collections, which go through Kryo in Flink 1.x and have serializers of their own in 2.x. */
public class Basket {
    public String owner;
    public List<String> tags;
    public List<Item> items;
    public Map<String, Long> counts;
    public Map<Integer, Item> places;
    public Set<Integer> marks;

    public Basket() {}
}
