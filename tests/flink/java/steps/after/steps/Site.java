package steps;

/** Goes by another name in the other release of the job. */
public class Site {
    public String name;
    public Integer floor;

    public Site() {}
}
