package harness;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Runs a job through all its rounds and takes a snapshot at the end.
 * --job CLASS --backend NAME --parallelism N --max-parallelism N --directory DIR --kind canonical|native|checkpoint
 * --checkpoint-type CONFIGURED|FULL|INCREMENTAL --pause-ms N --entries FILE [-D key=value]...
 * With --snapshot PATH the job starts from that snapshot, and with --records N its sources emit so many records after it.
 * FILE gets the entries as the running job itself sees them. After every round but the last there is a checkpoint, and
 * after the first one a pause.
 */
public final class MakeSnapshot {
    private MakeSnapshot() {}

    public static int run(String[] words) {
        int code = 0;
        Args args = Args.parse(words);
        String kind = args.get("kind");
        try (RunningJob job = new RunningJob(args, args.values.get("snapshot"))) {
            for (int round = 1; round <= job.rounds(); round++) {
                job.runRound(round);
                if (round < job.rounds()) {
                    job.checkpoint(args.get("checkpoint-type"));
                    Thread.sleep(round == 1 ? args.number("pause-ms") : 0);
                }
            }
            // operator state is written into the backend when a snapshot is taken, so take it first
            String path = kind.equals("checkpoint")
                    ? job.checkpoint(args.get("checkpoint-type"))
                    : job.savepoint(args.get("directory"), kind);
            System.out.println("SNAPSHOT " + path);
            job.awaitDrained();
            Files.write(Path.of(args.get("entries")), job.entries(false));
        } catch (Exception e) {
            Failure.print(e);
            code = 1;
        }
        return code;
    }
}
