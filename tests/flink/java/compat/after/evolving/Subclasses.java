package evolving;

/** Subclasses after. */
public final class Subclasses {
    private Subclasses() {}

    public static class Base { public long id; }

    public static class SameSub extends Base { public long a; }

    public static class AddedSub extends Base { public long a; public long b; }

    public static class RemovedSub extends Base { public long a; }

    public static class ChangedSub extends Base { public double a; }

    public static class EnumSub extends Base { public Enums.AddedAtEnd a = Enums.AddedAtEnd.A; }

    public static class ChangedBase { public long id; public String note; }

    public static class ChangedBaseSub extends ChangedBase { public long a; }
}
