package compat;

import java.lang.reflect.Constructor;
import java.util.Arrays;
import org.apache.flink.api.common.typeutils.TypeSerializer;

/** Serializers whose classes are not public, or have another name in another release. */
final class Made {
    private Made() {}

    /** Calls the first constructor that takes the arguments, of the first class that there is. */
    static TypeSerializer<?> make(String names, Object... arguments) throws Exception {
        Class<?> found = find(names);
        for (Constructor<?> each : found.getDeclaredConstructors()) {
            if (takes(each.getParameterTypes(), arguments)) {
                each.setAccessible(true);
                return (TypeSerializer<?>) each.newInstance(arguments);
            }
        }
        throw new NoSuchMethodException(found + Arrays.toString(arguments));
    }

    static boolean exists(String names) {
        try {
            find(names);
            return true;
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    private static Class<?> find(String names) throws ClassNotFoundException {
        ClassNotFoundException missing = null;
        for (String name : names.split("\\|")) {
            try {
                return Class.forName(name.startsWith("compat.") ? name : "org.apache.flink." + name);
            } catch (ClassNotFoundException e) {
                missing = e;
            }
        }
        throw missing;
    }

    private static boolean takes(Class<?>[] types, Object[] arguments) {
        if (types.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < types.length; i++) {
            boolean primitive = types[i] == boolean.class && arguments[i] instanceof Boolean
                    || types[i] == int.class && arguments[i] instanceof Integer;
            if (!primitive && !types[i].isInstance(arguments[i])) {
                return false;
            }
        }
        return true;
    }
}
