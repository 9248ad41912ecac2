package harness;

import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * Runs programs of this package one after the other, so that they share a JVM that is warm.
 *
 * <p>Each line of the input names a file with words that a NUL ends: the file that gets the output, the directories that
 * {@link MappedFileSystemFactory} maps, the program, and its arguments. The answer is a line with the exit code.
 */
public final class Worker {
    private Worker() {}

    public static void main(String[] words) throws Exception {
        PrintStream answers = System.out;
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String path = requests.readLine(); path != null; path = requests.readLine()) {
            String[] request = Files.readString(Path.of(path)).split("\0");
            try (PrintStream output = new PrintStream(new FileOutputStream(request[0]), true, StandardCharsets.UTF_8)) {
                System.setOut(output);
                System.setErr(output);
                System.setProperty("harness.mapping", request[1]);
                answers.println(run(request[2], Arrays.copyOfRange(request, 3, request.length)));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static int run(String program, String[] words) {
        try {
            Method method = Class.forName("harness." + program).getMethod("run", String[].class);
            return (int) method.invoke(null, (Object) words);
        } catch (Throwable e) {
            e.printStackTrace();
            return 1;
        }
    }
}
