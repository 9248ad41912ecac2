package harness;

import java.util.StringJoiner;

/** A JSON object under construction; keys keep their order. */
final class JsonObject {
    private final StringJoiner fields = new StringJoiner(",", "{", "}");

    JsonObject put(String key, Object value) {
        fields.add(JsonValue.quote(key) + ":" + JsonValue.of(value));
        return this;
    }

    @Override
    public String toString() {
        return fields.toString();
    }
}
