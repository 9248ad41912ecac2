package migrating;

/** A number and some content. */
public final class Crate<T> {
    int number;
    T content;

    Crate(int number, T content) {
        this.number = number;
        this.content = content;
    }
}
