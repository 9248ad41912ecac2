package evolving;

import java.util.stream.Stream;

/** The classes of this tree whose serializers are compared with those of the same name. */
public final class Index {
    public static final Class<?>[] CLASSES =
            Stream.of(Fields.class, Enums.class, Inherited.class, Records.class)
                    .flatMap(each -> Stream.of(each.getDeclaredClasses()))
                    .toArray(Class<?>[]::new);

    private Index() {}
}
