package upgrading;

/** Sum of the numbers of a key, as the first program keeps it. */
public class Total {
    public long sum;
    public String note;
    public long count;

    public Total() {}

    public void add(long number) {

        sum += number % 1000;
        note = "last " + number;
        count++;
    }
}
