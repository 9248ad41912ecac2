package steps;

/** An element of collections. */
public class Item {
    public String name;
    public long price;
    public Double weight;

    public Item() {}
}
