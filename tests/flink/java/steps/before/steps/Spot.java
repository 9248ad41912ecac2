package steps;

/** A subclass that the job does not register, which goes by another name in the other release too. */
public class Spot extends Place {
    public long angle;

    public Spot() {}
}
