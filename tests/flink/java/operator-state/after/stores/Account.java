package stores;

/** The account with other fields. */
public class Account {
    public String holder;
    public long level;
    public Integer visits;
    public String currency;
    public Home home;

    public Account() {}

    /** Part of the account. */
    public static class Home {
        public String city;
        public String postcode;

        public Home() {}
    }
}
