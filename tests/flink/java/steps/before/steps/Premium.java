package steps;

/** A subclass that the job does not register. */
public class Premium extends Account {
    public int discount;
    public String manager;

    public Premium() {}
}
