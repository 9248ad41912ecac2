package migrating;

/** A POJO, before it gains a field. */
public class Item {
    /** Bytes of a counter. */
    static final int WIDTH = 4;

    public long x;

    public Item() {}

    Item(long x) {
        this.x = x;
    }
}
