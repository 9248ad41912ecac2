package evolving;

/** Enums after. */
public final class Enums {
    private Enums() {}

    public enum Same { A, B }

    public enum AddedAtEnd { A, B, C }

    public enum AddedInMiddle { A, C, B }

    public enum AddedAtStart { C, A, B }

    public enum Removed { A }

    public enum RemovedFirst { B }

    public enum Reordered { C, A, B }

    public enum RenamedConstant { A, BB }

    public enum AddedAndRemoved { A, C }

    public enum AddedAndReordered { C, B, A }

    public enum WithBody { A { }, B { }, C { } }
}
