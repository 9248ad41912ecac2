package steps;

import java.math.BigDecimal;
import java.util.ArrayList;

/** No POJO, since it has no constructor without arguments: Flink gives it to Kryo. */
public class Ticket {
    private final String title;
    private final int priority;
    private final Long parent;
    private final BigDecimal cost;
    private final ArrayList<String> labels;

    public Ticket(String title, int priority, Long parent, BigDecimal cost, ArrayList<String> labels) {
        this.title = title;
        this.priority = priority;
        this.parent = parent;
        this.cost = cost;
        this.labels = labels;
    }
}
