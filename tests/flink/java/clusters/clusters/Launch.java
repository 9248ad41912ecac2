package clusters;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

import java.util.Arrays;

/** Main program that submits a job of the tests to a cluster: class with `build`, name, `-D` options. */
public final class Launch {
    private Launch() {}

    public static void main(String[] args) throws Exception {
        Configuration configuration = new Configuration();
        for (String option : Arrays.copyOfRange(args, 2, args.length)) {
            configuration.setString(option.substring(0, option.indexOf('=')), option.substring(option.indexOf('=') + 1));
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        Class<?> job = Thread.currentThread().getContextClassLoader().loadClass(args[0]);
        job.getMethod("build", StreamExecutionEnvironment.class).invoke(null, env);
        env.execute(args[1]);
    }
}
