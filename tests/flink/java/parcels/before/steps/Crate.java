package steps;

import java.util.List;
import java.util.Map;

/** A POJO with collections. */
public class Crate {
    public String owner;
    public int weight;
    public Map<String, Long> counts;
    public List<String> tags;

    public Crate() {}
}
