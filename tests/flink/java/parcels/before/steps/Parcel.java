package steps;

import java.util.List;
import java.util.Map;

/** A POJO with collections, which go through Kryo in Flink 1.x, beside fields that change. */
public class Parcel {
    public String owner;
    public int weight;
    public String note;
    public Map<String, Long> counts;
    public List<String> tags;
    public Stop first;
    public Stop[] stops;

    public Parcel() {}
}
