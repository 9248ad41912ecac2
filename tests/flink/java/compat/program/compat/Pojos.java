package compat;

import java.io.ByteArrayOutputStream;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.memory.DataOutputViewStreamWrapper;

/** POJOs whose subclasses are registered, or not, in one order or another. */
final class Pojos {
    private Pojos() {}

    static void add() {
        Catalog.add("pojo", "plain", () -> make());
        Catalog.add("pojo", "circle", () -> make(Circle.class));
        Catalog.add("pojo", "square", () -> make(Square.class));
        Catalog.add("pojo", "circle-square", () -> make(Circle.class, Square.class));
        Catalog.add("pojo", "square-circle", () -> make(Square.class, Circle.class));
        Catalog.add("pojo", "circle-square-ring", () -> make(Circle.class, Square.class, Ring.class));
        Catalog.add("pojo", "ring-circle-square", () -> make(Ring.class, Circle.class, Square.class));
        Catalog.add("pojo", "not-registered", () -> use(make(), new Circle()));
        Catalog.add("pojo", "circle-and-not-registered", () -> use(make(Circle.class), new Square()));
        Catalog.add("pojo", "square-and-not-registered", () -> use(make(Square.class), new Circle()));
        Catalog.add("pojo", "not-a-pojo-not-registered", () -> use(make(), new Blob(1)));
        Catalog.add("pojo", "other-class", () ->
                TypeInformation.of(Circle.class).createSerializer(new SerializerConfigImpl()));
    }

    static TypeSerializer<Shape> make(Class<?>... registered) {
        SerializerConfigImpl config = new SerializerConfigImpl();
        for (Class<?> each : registered) {
            config.registerPojoType(each);
        }
        return TypeInformation.of(Shape.class).createSerializer(config);
    }

    /** The snapshot of a serializer lists the classes that it has seen. */
    @SuppressWarnings({"rawtypes", "unchecked"})
    static <T> TypeSerializer<T> use(TypeSerializer<T> serializer, Object value) throws Exception {
        ((TypeSerializer) serializer).serialize(value, new DataOutputViewStreamWrapper(new ByteArrayOutputStream()));
        return serializer;
    }

    /** A class with subclasses. */
    public static class Shape {
        public String name = "";
        public long area;
    }

    /** A subclass. */
    public static class Circle extends Shape {
        public double radius;
    }

    /** Another subclass. */
    public static class Square extends Shape {
        public double side;
    }

    /** A subclass of a subclass. */
    public static class Ring extends Circle {
        public double inner;
    }

    /** A subclass that is no POJO. */
    public static class Blob extends Shape {
        private final int size;

        Blob(int size) {
            this.size = size;
        }
    }
}
