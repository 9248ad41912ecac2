package evolving;

/** Records after. */
public final class Records {
    private Records() {}

    public record Same(long a, String b) {}

    public record Added(long a, String b) {}

    public record Removed(long a) {}

    public record Reordered(String b, long a) {}

    public record TypeChanged(double a) {}

    public record Renamed(long aa) {}
}
