package steps;

import java.util.List;
import java.util.Map;

/** A POJO with the same collections and other fields. */
public class Crate {
    public String holder;
    public long weight;
    public Map<String, Long> counts;
    public List<String> tags;

    public Crate() {}
}
