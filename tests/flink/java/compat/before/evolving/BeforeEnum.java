package evolving;

/** An enum that has another name in the other tree. */
public enum BeforeEnum {
    A,
    B
}
