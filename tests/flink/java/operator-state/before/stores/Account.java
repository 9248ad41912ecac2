package stores;

/** Changes in every way that a field can. */
public class Account {
    public String owner;
    public int level;
    public Integer visits;
    public String note;
    public Home home;

    public Account() {}

    /** Part of the account. */
    public static class Home {
        public String city;
        public int zip;

        public Home() {}
    }
}
