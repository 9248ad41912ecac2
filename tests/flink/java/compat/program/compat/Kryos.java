package compat;

import com.esotericsoftware.kryo.Kryo;
import com.esotericsoftware.kryo.Serializer;
import com.esotericsoftware.kryo.io.Input;
import com.esotericsoftware.kryo.io.Output;
import java.io.Serializable;
import java.util.function.Consumer;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.java.typeutils.runtime.kryo.KryoSerializer;

/** Kryo serializers with types, serializers, instances of serializers and default serializers registered. */
@SuppressWarnings({"rawtypes", "unchecked"})
final class Kryos {
    private Kryos() {}

    static void add() {
        add("plain", config -> {});
        add("dog", config -> config.registerKryoType(Dog.class));
        add("cat", config -> config.registerKryoType(Cat.class));
        add("dog-cat", config -> {
            config.registerKryoType(Dog.class);
            config.registerKryoType(Cat.class);
        });
        add("cat-dog", config -> {
            config.registerKryoType(Cat.class);
            config.registerKryoType(Dog.class);
        });
        add("dog-cat-bird", config -> {
            config.registerKryoType(Dog.class);
            config.registerKryoType(Cat.class);
            config.registerKryoType(Bird.class);
        });
        add("dog-with-serializer", config -> config.registerTypeWithKryoSerializer(Dog.class, PetSerializer.class));
        add("dog-with-other", config -> config.registerTypeWithKryoSerializer(Dog.class, OtherSerializer.class));
        add("dog-with-instance", config -> config.registerTypeWithKryoSerializer(Dog.class, new PetSerializer()));
        add("dog-with-other-instance", config ->
                config.registerTypeWithKryoSerializer(Dog.class, new OtherSerializer()));
        add("cat-dog-with-serializer", config -> {
            config.registerKryoType(Cat.class);
            config.registerTypeWithKryoSerializer(Dog.class, PetSerializer.class);
        });
        add("dog-cat-with-serializers", config -> {
            config.registerTypeWithKryoSerializer(Dog.class, PetSerializer.class);
            config.registerTypeWithKryoSerializer(Cat.class, PetSerializer.class);
        });
        add("cat-dog-with-serializers", config -> {
            config.registerTypeWithKryoSerializer(Cat.class, PetSerializer.class);
            config.registerTypeWithKryoSerializer(Dog.class, PetSerializer.class);
        });
        add("default-class", config -> config.addDefaultKryoSerializer(Pet.class, PetSerializer.class));
        add("default-other-class", config -> config.addDefaultKryoSerializer(Pet.class, (Class) OtherSerializer.class));
        add("default-instance", config -> config.addDefaultKryoSerializer(Pet.class, new PetSerializer()));
        add("default-classes", config -> {
            config.addDefaultKryoSerializer(Pet.class, PetSerializer.class);
            config.addDefaultKryoSerializer(Cat.class, PetSerializer.class);
        });
        add("default-classes-reversed", config -> {
            config.addDefaultKryoSerializer(Cat.class, PetSerializer.class);
            config.addDefaultKryoSerializer(Pet.class, PetSerializer.class);
        });
        add("default-instances", config -> {
            config.addDefaultKryoSerializer(Pet.class, new PetSerializer());
            config.addDefaultKryoSerializer(Cat.class, new PetSerializer());
        });
        add("default-instances-reversed", config -> {
            config.addDefaultKryoSerializer(Cat.class, new PetSerializer());
            config.addDefaultKryoSerializer(Pet.class, new PetSerializer());
        });
        add("dog-and-default", config -> {
            config.registerKryoType(Dog.class);
            config.addDefaultKryoSerializer(Pet.class, PetSerializer.class);
        });
        // What users do for Protobuf and Thrift: a generic serializer as the default of a base class.
        add("default-of-messages", config ->
                config.addDefaultKryoSerializer(Message.class, (Class) MessageSerializer.class));
        add("message-registered", config ->
                config.registerTypeWithKryoSerializer(Event.class, (Class) MessageSerializer.class));
        Catalog.add("kryo", "other-type", () -> new KryoSerializer<>(Dog.class, new SerializerConfigImpl()));
        Catalog.add("kryo", "other-type-registered", () -> {
            SerializerConfigImpl config = new SerializerConfigImpl();
            config.registerKryoType(Dog.class);
            return new KryoSerializer<>(Dog.class, config);
        });
    }

    private static void add(String name, Consumer<SerializerConfigImpl> register) {
        Catalog.add("kryo", name, () -> {
            SerializerConfigImpl config = new SerializerConfigImpl();
            register.accept(config);
            return new KryoSerializer<>(Pet.class, config);
        });
    }

    /** A class without the shape of a POJO. */
    public abstract static class Pet {
        private final String name;

        Pet(String name) {
            this.name = name;
        }

        String name() {
            return name;
        }
    }

    /** One kind. */
    public static class Dog extends Pet {
        public Dog(String name) {
            super(name);
        }
    }

    /** Another kind. */
    public static class Cat extends Pet {
        public Cat(String name) {
            super(name);
        }
    }

    /** A third kind. */
    public static class Bird extends Pet {
        public Bird(String name) {
            super(name);
        }
    }

    /** Base of generated messages. */
    public interface Message {}

    /** A message. */
    public static class Event implements Message {}

    /** Writes names. */
    public static class PetSerializer extends Serializer<Pet> implements Serializable {
        private static final long serialVersionUID = 1;

        @Override
        public void write(Kryo kryo, Output output, Pet pet) {
            output.writeString(pet.name());
        }

        @Override
        public Pet read(Kryo kryo, Input input, Class type) {
            return new Dog(input.readString());
        }
    }

    /** Writes names too. */
    public static class OtherSerializer extends PetSerializer {
        private static final long serialVersionUID = 1;
    }

    /** Writes messages. */
    public static class MessageSerializer extends Serializer<Message> implements Serializable {
        private static final long serialVersionUID = 1;

        @Override
        public void write(Kryo kryo, Output output, Message message) {
            output.writeInt(1);
        }

        @Override
        public Message read(Kryo kryo, Input input, Class type) {
            return new Event();
        }
    }
}
