package harness;

import java.nio.file.Files;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.ConcurrentModificationException;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.CheckpointType;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.AccessExecutionVertex;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobgraph.OperatorID;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.runtime.taskexecutor.slot.TaskSlotTable;
import org.apache.flink.runtime.taskmanager.Task;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.graph.StreamGraph;
import org.apache.flink.streaming.api.graph.StreamGraphHasherV2;
import org.apache.flink.streaming.api.graph.StreamNode;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.SourceOperator;
import org.apache.flink.streaming.runtime.tasks.OperatorChain;
import org.apache.flink.streaming.runtime.tasks.StreamOperatorWrapper;
import org.apache.flink.streaming.runtime.tasks.StreamTask;

/** A job that runs on a Flink mini cluster inside this JVM. */
final class RunningJob implements AutoCloseable {
    private static final long PATIENCE_MS = 120_000;

    private final MiniCluster cluster;
    private final Map<OperatorID, String> uids = new LinkedHashMap<>();
    private final Class<?> job;
    private final String checkpoints;
    /** What the sources emit, where the options say it: a restored job emits fewer than one that starts empty. */
    private final String expectedRecords;
    private JobID id;

    /** {@code restorePath} is null for a job that starts empty. */
    RunningJob(Args args, String restorePath) throws Exception {
        int parallelism = args.number("parallelism");
        expectedRecords = args.values.get("records");
        checkpoints = args.values.containsKey("checkpoints")
                ? args.get("checkpoints")
                : Files.createTempDirectory("checkpoints").toString();
        job = Class.forName(args.get("job"));
        Configuration configuration = configuration(args, checkpoints);
        cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setConfiguration(configuration)
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(parallelism)
                .build());
        cluster.start();
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(parallelism);
        env.setMaxParallelism(args.number("max-parallelism"));
        open(0);
        job.getMethod("build", StreamExecutionEnvironment.class).invoke(null, env);
        StreamGraph graph = env.getStreamGraph();
        Map<Integer, byte[]> hashes = new StreamGraphHasherV2().traverseStreamGraphAndGenerateHashes(graph);
        for (StreamNode node : graph.getStreamNodes()) {
            uids.put(new OperatorID(hashes.get(node.getId())), node.getTransformationUID());
        }
        JobGraph jobGraph = graph.getJobGraph();
        if (restorePath != null) {
            jobGraph.setSavepointRestoreSettings(SavepointRestoreSettings.forPath(restorePath, false));
        }
        id = jobGraph.getJobID();
        cluster.submitJob(jobGraph).get(60, TimeUnit.SECONDS);
        awaitRunning();
    }

    private static Configuration configuration(Args args, String checkpoints) {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", args.get("backend"));
        configuration.setString("state.backend.rocksdb.memory.managed", "false");
        configuration.setString("execution.checkpointing.interval", "100 d");
        // Since 2.3 the first checkpoint follows the restore after this pause, and operators replace what was restored.
        configuration.setString("execution.checkpointing.min-pause", "99 d");
        // without a directory the savepoint would keep all data inside _metadata
        configuration.setString("execution.checkpointing.dir", "file://" + checkpoints);
        configuration.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        configuration.setString("restart-strategy.type", "none");
        configuration.setString("taskmanager.memory.network.min", "64mb");
        configuration.setString("taskmanager.memory.network.max", "64mb");
        configuration.setString("taskmanager.memory.managed.size", "128mb");
        configuration.setString("rest.port", "0");
        configuration.setString("rest.bind-port", "0");
        configuration.setString("rest.address", "localhost");
        configuration.setString("pipeline.generic-types", "false"); // no state of these jobs may fall back to Kryo
        configuration.setString("state.changelog.dstl.dfs.base-path", "file://" + checkpoints + "/changelog");
        args.settings.forEach(configuration::setString);
        return configuration;
    }

    private void awaitRunning() throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!allTasksRun()) {
            failIfOver(end, "the job does not reach RUNNING");
            Thread.sleep(50);
        }
    }

    private boolean allTasksRun() throws Exception {
        if (cluster.getJobStatus(id).get(30, TimeUnit.SECONDS) != JobStatus.RUNNING) {
            return false;
        }
        for (AccessExecutionVertex vertex :
                cluster.getExecutionGraph(id).get(30, TimeUnit.SECONDS).getAllExecutionVertices()) {
            ExecutionState state = vertex.getExecutionState();
            if (state != ExecutionState.RUNNING && state != ExecutionState.FINISHED) {
                return false;
            }
        }
        return true;
    }

    private void failIfOver(long end, String what) throws Exception {
        if (cluster.getJobStatus(id).get(30, TimeUnit.SECONDS).isTerminalState()) {
            throw cluster.requestJobResult(id)
                    .get(30, TimeUnit.SECONDS)
                    .getSerializedThrowable()
                    .<Exception>map(t -> new IllegalStateException(
                            "the job failed", t.deserializeError(RunningJob.class.getClassLoader())))
                    .orElseGet(() -> new IllegalStateException("the job ended"));
        }
        if (System.currentTimeMillis() > end) {
            throw new IllegalStateException(what + " within " + PATIENCE_MS + " ms");
        }
    }

    /** Throws what the job failed with, if it does not run any more. */
    void requireRunning() throws Exception {
        failIfOver(Long.MAX_VALUE, "");
    }

    /** How often the job's sources pause for a checkpoint; a job says so with {@code ROUNDS} and {@code open(round)}. */
    int rounds() throws Exception {
        return (int) Math.max(1, number("ROUNDS"));
    }

    /** A constant of the job, 0 if it has none of this name. */
    private long number(String name) throws Exception {
        for (Field field : job.getFields()) {
            if (field.getName().equals(name)) {
                return field.getLong(null);
            }
        }
        return 0;
    }

    /**
     * Returns when the sources have emitted the {@code RECORDS} of every round so far and the {@code FIRST_RECORDS} of the
     * job; the last round of a job with {@code FINISHED} ends when so many tasks have ended, which they do only after a
     * checkpoint.
     */
    void runRound(int round) throws Exception {
        open(round);
        long records = expectedRecords != null
                ? Long.parseLong(expectedRecords)
                : round * number("RECORDS") + number("FIRST_RECORDS");
        boolean ending = round == rounds() && number("FINISHED") > 0;
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (ending ? finished() < number("FINISHED") : emitted(end) < records) {
            failIfOver(end, ending ? "no task ends" : "the sources emit less than " + records + " records");
            Thread.sleep(50);
        }
    }

    /** Lets the sources of a job with rounds emit the records of a round; of none as long as it is 0. */
    private void open(int round) throws Exception {
        if (number("ROUNDS") > 0) {
            job.getMethod("open", int.class).invoke(null, round);
        }
    }

    private long finished() throws Exception {
        long sum = 0;
        for (AccessExecutionVertex vertex :
                cluster.getExecutionGraph(id).get(30, TimeUnit.SECONDS).getAllExecutionVertices()) {
            sum += vertex.getExecutionState() == ExecutionState.FINISHED ? 1 : 0;
        }
        return sum;
    }

    /** Returns when the operators have taken in what the channels between them hold, if the job is one that is slow. */
    void awaitDrained() throws Exception {
        List<String> before = List.of();
        for (List<String> now = entries(true); number("SLOW_MS") > 0 && !now.equals(before); now = entries(true)) {
            before = now;
            Thread.sleep(number("SLOW_MS"));
        }
    }

    private long emitted(long end) throws Exception {
        long sum = 0;
        try {
            for (String count : onOperators((operator, subtask) -> operator instanceof SourceOperator
                    ? List.of(Long.toString(
                            operator.getMetricGroup()
                                    .getIOMetricGroup()
                                    .getNumRecordsOutCounter()
                                    .getCount()))
                    : List.of())) {
                sum += Long.parseLong(count);
            }
        } catch (CancellationException | ConcurrentModificationException e) { // a task failed, and the job will say why
            Thread.sleep(500);
            failIfOver(end, "a task was cancelled, and the job does not end");
            return 0;
        }
        return sum;
    }

    /** Takes a savepoint of a kind ({@code canonical} or {@code native}) below {@code directory} and returns its path. */
    String savepoint(String directory, String kind) throws Exception {
        SavepointFormatType format = SavepointFormatType.valueOf(kind.toUpperCase(Locale.ROOT));
        return cluster.triggerSavepoint(id, "file://" + directory, false, format)
                .get(120, TimeUnit.SECONDS)
                .replaceFirst("^file:(//)?", "");
    }

    /** Takes a checkpoint that stays when the job is cancelled, and returns its path. */
    String checkpoint(String type) throws Exception {
        long number = cluster.triggerCheckpoint(id, CheckpointType.valueOf(type)).get(120, TimeUnit.SECONDS);
        Thread.sleep(500); // the next one may refer to this one only when the operators have heard that it is complete
        return checkpoints + "/" + id + "/chk-" + number;
    }

    /** Every entry of every state of the job, sorted; {@code restored} says that a union list is whole in each subtask. */
    List<String> entries(boolean restored) throws Exception {
        List<String> lines = onOperators((operator, subtask) ->
                new OperatorEntries(uids.get(operator.getOperatorID()), operator, subtask, restored).read());
        lines.sort(null);
        return lines;
    }

    private interface Visit {
        List<String> on(AbstractStreamOperator<?> operator, int subtask) throws Exception;
    }

    /** Runs the visit for every operator in the thread of its task. */
    private List<String> onOperators(Visit visit) throws Exception {
        List<String> lines = new ArrayList<>();
        for (Object taskManager : (List<?>) Reflection.field(cluster, "taskManagers")) {
            TaskSlotTable<?> slots = (TaskSlotTable<?>) Reflection.field(taskManager, "taskSlotTable");
            for (Iterator<?> tasks = slots.getTasks(id); tasks.hasNext(); ) {
                Task task = (Task) tasks.next();
                if (task.getExecutionState() != ExecutionState.RUNNING) {
                    continue;
                }
                StreamTask<?, ?> streamTask = (StreamTask<?, ?>) Reflection.field(task, "invokable");
                Callable<List<String>> visitAll = () -> visitChain(visit, streamTask, task);
                lines.addAll(streamTask.getMailboxExecutorFactory()
                        .createExecutor(0)
                        .submit(visitAll, "visit operators")
                        .get(60, TimeUnit.SECONDS));
            }
        }
        return lines;
    }

    private static List<String> visitChain(Visit visit, StreamTask<?, ?> streamTask, Task task) throws Exception {
        List<String> lines = new ArrayList<>();
        OperatorChain<?, ?> chain = (OperatorChain<?, ?>) Reflection.field(streamTask, "operatorChain");
        Iterable<?> wrappers = (Iterable<?>) Reflection.call(chain, "getAllOperators");
        for (Object wrapper : wrappers) {
            AbstractStreamOperator<?> operator =
                    (AbstractStreamOperator<?>) ((StreamOperatorWrapper<?, ?>) wrapper).getStreamOperator();
            lines.addAll(visit.on(operator, task.getTaskInfo().getIndexOfThisSubtask()));
        }
        return lines;
    }

    @Override
    public void close() throws Exception {
        if (!cluster.getJobStatus(id).get(30, TimeUnit.SECONDS).isTerminalState()) {
            cluster.cancelJob(id).get(30, TimeUnit.SECONDS);
            cluster.requestJobResult(id).get(60, TimeUnit.SECONDS);
        }
        cluster.close();
    }
}
