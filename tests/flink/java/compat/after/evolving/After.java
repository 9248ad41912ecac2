package evolving;

/** A class that has another name in the other tree. */
public class After {
    public long a;
}
