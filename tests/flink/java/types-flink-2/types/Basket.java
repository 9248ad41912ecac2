package types;

import java.util.List;
import java.util.Map;
import java.util.Set;

/** A POJO with collections. */
public class Basket {
    public List<String> items;
    public Map<String, Place> places;
    public Set<Integer> codes;

    public Basket() {}
}
