package types;

/** An enum. */
public enum Color {
    RED,
    GREEN,
    BLUE
}
