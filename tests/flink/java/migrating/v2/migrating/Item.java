package migrating;

/** A POJO that has gained a field. */
public class Item {
    /** Bytes of a counter. */
    static final int WIDTH = 8;

    public long x;
    public int y;

    public Item() {}

    Item(long x) {
        this.x = x;
    }
}
