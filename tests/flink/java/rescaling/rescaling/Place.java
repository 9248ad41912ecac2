package rescaling;

import java.util.Objects;

/** A POJO that hashes its fields with {@link Objects#hash}, in another order than Flink writes them. */
public class Place {
    /** Makes the hash another one than that of the job that wrote a snapshot: Flink then does not find its keys. */
    static volatile boolean wrongHash;

    public String region;
    public int number;

    public Place() {}

    static Place of(int n) {
        Place place = new Place();
        place.region = n % 5 == 0 ? null : Keys.text(n % 5);
        place.number = n;
        return place;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Place
                && Objects.equals(region, ((Place) other).region)
                && number == ((Place) other).number;
    }

    @Override
    public int hashCode() {
        return Objects.hash(region, number) + (wrongHash ? 1 : 0);
    }
}
