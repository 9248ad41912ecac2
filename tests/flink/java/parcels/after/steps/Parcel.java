package steps;

import java.util.List;
import java.util.Map;

/** A POJO with collections, which go through Kryo in Flink 1.x, beside fields that have changed. */
public class Parcel {
    public String holder;
    public long weight;
    public String currency;
    public Map<String, Long> numbers;
    public List<String> tags;
    public Stop first;
    public Stop[] stops;

    public Parcel() {}
}
