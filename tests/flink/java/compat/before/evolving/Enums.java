package evolving;

/** Enums before. */
public final class Enums {
    private Enums() {}

    public enum Same { A, B }

    public enum AddedAtEnd { A, B }

    public enum AddedInMiddle { A, B }

    public enum AddedAtStart { A, B }

    public enum Removed { A, B }

    public enum RemovedFirst { A, B }

    public enum Reordered { A, B, C }

    public enum RenamedConstant { A, B }

    public enum AddedAndRemoved { A, B }

    public enum AddedAndReordered { A, B }

    public enum WithBody { A { }, B { } }
}
