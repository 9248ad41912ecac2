package types;

/** A subclass that the jobs do not register. */
public class Guest extends Person {
    public int visits;

    public Guest() {}
}
