package steps;

/** {@code discount} is the rebate and a double. */
public class Premium extends Account {
    public double rebate;
    public String manager;

    public Premium() {}
}
