package steps;

/** A POJO that both releases of the job have. */
public class Address {
    public String city;
    public int zip;

    public Address() {}
}
