package steps;

/** Two states in one. */
public class Totals {
    public Long credit;
    public Long debit;
    public Double rate;

    public Totals() {}
}
