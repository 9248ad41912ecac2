package rescaling;

/** A record, whose {@code hashCode} Java makes. */
public record Visit(long at, String user, int page) {}
