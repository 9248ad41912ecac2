package types;

import java.math.BigDecimal;
import java.time.Instant;

/** A POJO with nullable fields, a nested POJO, an array and an enum. */
public class Person {
    public String name;
    public Integer age;
    public long id;
    public boolean active;
    public Place home;
    public Color color;
    public Instant born;
    public BigDecimal balance;
    public String[] tags;

    public Person() {}
}
