package types;

import java.util.Objects;

/** A POJO that is a key and a nested field. */
public class Place {
    public String region;
    public int number;

    public Place() {}

    public Place(String region, int number) {
        this.region = region;
        this.number = number;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Place
                && Objects.equals(region, ((Place) other).region)
                && number == ((Place) other).number;
    }

    @Override
    public int hashCode() {
        return Objects.hash(region, number);
    }
}
