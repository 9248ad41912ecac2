package types;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.typeutils.SetTypeInfo;

/** Since Flink 2.0 sets and the collection fields of POJOs have serializers of their own. */
final class Collections {
    private Collections() {}

    static List<Samples.Sample> samples() {
        return List.of(
                Samples.sample("set", new SetTypeInfo<>(Types.STRING), n -> new LinkedHashSet<>(
                        n % 3 == 0 ? List.of() : List.of(Samples.text(n), "other"))),
                Samples.sample("basket", TypeInformation.of(Basket.class), Collections::basket));
    }

    private static Basket basket(int n) {
        Basket basket = new Basket();
        basket.items = n % 3 == 0 ? null : new ArrayList<>(List.of(Samples.text(n), "item"));
        basket.codes = n % 3 == 1 ? null : new LinkedHashSet<>(List.of(n, -5));
        basket.places = n % 3 == 2 ? null : new LinkedHashMap<>();
        if (basket.places != null) {
            basket.places.put("here", Samples.place(n));
        }
        return basket;
    }
}
