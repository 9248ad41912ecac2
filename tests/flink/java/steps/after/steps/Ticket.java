package steps;

import java.math.BigDecimal;

/** The same, grown up to a POJO, with an array in place of the list. */
public class Ticket {
    public String title;
    public int priority;
    public Long parent;
    public BigDecimal cost;
    public String[] labels;

    public Ticket() {}
}
