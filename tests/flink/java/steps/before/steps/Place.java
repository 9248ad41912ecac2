package steps;

/** Goes by another name in the other release of the job. */
public class Place {
    public String name;
    public Integer floor;

    public Place() {}
}
