package types;

import java.util.List;

/** Flink 1.x serializes sets and the collection fields of POJOs with Kryo, so there is nothing here. */
final class Collections {
    private Collections() {}

    static List<Samples.Sample> samples() {
        return List.of();
    }
}
