package upgrading;

/** Sum of the numbers of a key, as the second program keeps it. */
public class Total {
    public double sum;
    public int priority;
    public long count;

    public Total() {}

    public void add(long number) {
        sum += number % 1000;
        priority = 1;
        count++;
    }
}
