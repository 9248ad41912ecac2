package types;

/** A subclass that the jobs register. */
public class Employee extends Person {
    public String badge;

    public Employee() {}
}
