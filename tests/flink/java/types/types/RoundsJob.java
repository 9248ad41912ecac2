package types;

import com.acme.orders.ReplaySource;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;

/** Changes its state in three rounds, with a checkpoint after each. */
public final class RoundsJob {
    static final int NUMBERS = 12;

    /** How many rounds there are. */
    public static final int ROUNDS = 3;

    private static final List<Integer> BROADCASTS = List.of(0, 2, 4);

    /** How many records the sources emit in each round, and besides them in the first one. */
    public static final long RECORDS = NUMBERS;

    public static final long FIRST_RECORDS = BROADCASTS.size();

    private RoundsJob() {}

    /** Lets the source emit the numbers of a round. */
    public static void open(int round) {
        RoundSource.limit = round * NUMBERS / 2;
    }

    /** A record says its round and its number: {@code round * NUMBERS + number}. */
    static DataStream<Integer> rounds(StreamExecutionEnvironment env) {
        return env.fromSource(
                        new RoundSource(List.of(everySecond(0), everySecond(1))),
                        WatermarkStrategy.<Integer>noWatermarks().withTimestampAssigner((n, previous) -> n * 7_000L),
                        "numbers",
                        Types.INT)
                .uid("numbers");
    }

    private static List<Integer> everySecond(int first) {
        List<Integer> numbers = new ArrayList<>();
        for (int n = first; n < NUMBERS * ROUNDS; n += 2) {
            numbers.add(n);
        }
        return numbers;
    }

    public static void build(StreamExecutionEnvironment env) {
        DataStream<Integer> numbers = rounds(env);
        numbers.keyBy(n -> Samples.place(n % NUMBERS), TypeInformation.of(Place.class))
                .process(new ChangingStates(), Types.STRING)
                .name("state-kinds")
                .uid("state-kinds");
        numbers.keyBy(n -> n % 4, Types.INT)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(30)))
                .process(new TypesJob.Nothing(), Types.STRING)
                .name("tumbling-windows")
                .uid("tumbling-windows");
        DataStream<Integer> broadcasts = env.fromSource(
                        new ReplaySource<>(List.of(BROADCASTS)),
                        WatermarkStrategy.noWatermarks(),
                        "broadcasts",
                        Types.INT)
                .uid("broadcasts")
                .setParallelism(1);
        numbers.connect(broadcasts.broadcast(OperatorStates.PERSONS, OperatorStates.NAMES))
                .process(new OperatorStates())
                .name("operator-states")
                .uid("operator-states");
    }
}
