package steps;

/** {@code owner} is the holder, {@code level} a long, {@code visits} one more; the currency is new, the note gone. */
public class Account {
    public String holder;
    public long level;
    public Integer visits;
    public String currency;
    public Home home;

    public Account() {}

    /** Part of the account; {@code zip} is the postcode and a text. */
    public static class Home {
        public String city;
        public String postcode;

        public Home() {}
    }
}
