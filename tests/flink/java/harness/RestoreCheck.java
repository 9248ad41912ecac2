package harness;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Restores a job from a snapshot and writes every entry that its operators then see.
 * --job CLASS --snapshot PATH --backend NAME --parallelism N --max-parallelism N --entries FILE [-D key=value]...
 * Exit code 0 = restored, 2 = Flink refused, 1 = the check itself failed
 * (the chain of causes is on standard output).
 */
public final class RestoreCheck {
    private RestoreCheck() {}

    public static int run(String[] words) {
        int code = 2;
        Args args = Args.parse(words);
        try (RunningJob job = new RunningJob(args, args.get("snapshot"))) {
            code = 1; // from here on a failure is ours, not a refusal
            job.awaitDrained();
            Files.write(Path.of(args.get("entries")), job.entries(true));
            code = 0;
        } catch (Exception e) {
            Failure.print(e);
        }
        return code;
    }
}
