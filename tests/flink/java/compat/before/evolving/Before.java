package evolving;

/** A class that has another name in the other tree. */
public class Before {
    public long a;
}
