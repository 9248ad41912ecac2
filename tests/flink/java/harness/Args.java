package harness;

import java.util.LinkedHashMap;
import java.util.Map;

/** Command line of the programs: {@code --name value} pairs and {@code -D flink.key=value} settings. */
final class Args {
    final Map<String, String> values = new LinkedHashMap<>();
    final Map<String, String> settings = new LinkedHashMap<>();

    static Args parse(String[] words) {
        Args args = new Args();
        for (int i = 0; i + 1 < words.length; i += 2) {
            if (words[i].equals("-D")) {
                String[] setting = words[i + 1].split("=", 2);
                args.settings.put(setting[0], setting[1]);
            } else {
                args.values.put(words[i].substring(2), words[i + 1]);
            }
        }
        return args;
    }

    String get(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing --" + name);
        }
        return value;
    }

    int number(String name) {
        return Integer.parseInt(get(name));
    }
}
