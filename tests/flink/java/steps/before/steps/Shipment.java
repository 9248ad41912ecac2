package steps;

/** Becomes two states. */
public class Shipment {
    public String code;
    public String customer;
    public long weight;
    public Address to;

    public Shipment() {}
}
