package evolving;

/** Classes with inherited fields after. */
public final class Inherited {
    private Inherited() {}

    public static class Base { public long a; }

    public static class OtherBase { public long a; }

    public static class MovedUpBase { public long a; public long z; }

    public static class MovedUp extends MovedUpBase { }

    public static class MovedDownBase { public long z; }

    public static class MovedDown extends MovedDownBase { public long a; public long b; }

    public static class BaseAddedBase { public long a; public long c; }

    public static class BaseAdded extends BaseAddedBase { public long b; }

    public static class BaseRemovedBase { public long a; }

    public static class BaseRemoved extends BaseRemovedBase { public long b; }

    public static class BaseChangedBase { public double a; }

    public static class BaseChanged extends BaseChangedBase { public long b; }

    public static class OtherParent extends OtherBase { public long b; }

    public static class GainsParent extends Base { public long b; }

    public static class LosesParent { public long b; }

    public static class GrandBase { public long a; public long g; }

    public static class MiddleBase extends GrandBase { }

    public static class MovedToGrandparent extends MiddleBase { public long b; }
}
