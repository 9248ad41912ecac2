package harness;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Runs a job until its sources are drained and takes a canonical savepoint.
 * --job CLASS --backend NAME --parallelism N --max-parallelism N --directory DIR --entries FILE [-D key=value]...
 * FILE gets the entries as the running job itself sees them.
 */
public final class MakeSnapshot {
    private MakeSnapshot() {}

    public static void main(String[] words) {
        int code = 0;
        Args args = Args.parse(words);
        try (RunningJob job = new RunningJob(args, null)) {
            job.awaitRecords();
            // operator state is written into the backend when a snapshot is taken, so take it first
            System.out.println("SAVEPOINT " + job.savepoint(Path.of(args.get("directory")).toUri().toString()));
            Files.write(Path.of(args.get("entries")), job.entries(false));
        } catch (Exception e) {
            Failure.print(e);
            code = 1;
        }
        System.out.flush();
        Runtime.getRuntime().halt(code);
    }
}
