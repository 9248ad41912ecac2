package harness;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Runs a job, with the checkpoints that its options ask for, until a file appears; then it is cancelled and its last
 * checkpoints stay.
 * --job CLASS --backend NAME --parallelism N --max-parallelism N --checkpoints DIR --until FILE [-D key=value]...
 * Exit code 0 = the job was running when the file appeared, 1 = it had failed.
 */
public final class RunUntil {
    private RunUntil() {}

    public static int run(String[] words) {
        int code = 0;
        Args args = Args.parse(words);
        try (RunningJob job = new RunningJob(args, null)) {
            while (!Files.exists(Path.of(args.get("until")))) {
                job.requireRunning();
                Thread.sleep(100);
            }
            job.requireRunning();
        } catch (Exception e) {
            Failure.print(e);
            code = 1;
        }
        return code;
    }
}
