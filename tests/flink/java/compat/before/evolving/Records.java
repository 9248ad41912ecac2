package evolving;

/** Records before. */
public final class Records {
    private Records() {}

    public record Same(long a, String b) {}

    public record Added(long a) {}

    public record Removed(long a, String b) {}

    public record Reordered(long a, String b) {}

    public record TypeChanged(long a) {}

    public record Renamed(long a) {}
}
