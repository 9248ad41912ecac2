package steps;

/** What is left of a shipment where its weight is a state of its own. */
public class Label {
    public String code;
    public String customer;
    public Address to;

    public Label() {}
}
