package steps;

import java.util.List;

/** A POJO that occurs in a field and in an array of another one, with a field that goes through Kryo in Flink 1.x. */
public class Stop {
    public String city;
    public int zip;
    public List<String> notes;

    public Stop() {}
}
