package evolving;

/** An enum that has another name in the other tree. */
public enum AfterEnum {
    A,
    B
}
