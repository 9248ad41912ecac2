package harness;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;

/** Private fields and methods of Flink's own objects. */
final class Reflection {
    private Reflection() {}

    static Object field(Object owner, String name) throws ReflectiveOperationException {
        return find(owner, name).get(owner);
    }

    static void set(Object owner, String name, Object value) throws ReflectiveOperationException {
        find(owner, name).set(owner, value);
    }

    private static Field find(Object owner, String name) throws NoSuchFieldException {
        for (Class<?> type = owner.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return field;
                }
            }
        }
        throw new NoSuchFieldException(owner.getClass().getName() + "." + name);
    }

    static boolean hasField(Object owner, String name) {
        return Arrays.stream(owner.getClass().getDeclaredFields()).anyMatch(field -> field.getName().equals(name));
    }

    static Object call(Object owner, String name) throws ReflectiveOperationException {
        for (Class<?> type = owner.getClass(); type != null; type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == 0 && !method.isBridge()) {
                    method.setAccessible(true);
                    try {
                        return method.invoke(owner);
                    } catch (InvocationTargetException e) {
                        throw new ReflectiveOperationException(e.getCause());
                    }
                }
            }
        }
        throw new NoSuchMethodException(owner.getClass().getName() + "." + name);
    }
}
