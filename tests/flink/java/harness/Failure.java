package harness;

/** A failure as lines that the Python side reads. */
final class Failure {
    private static final int DEPTH = 20;

    private Failure() {}

    static void print(Throwable failure) {
        int depth = 0;
        for (Throwable cause = failure; cause != null && depth < DEPTH; cause = cause.getCause(), depth++) {
            String message = String.valueOf(cause.getMessage()).replace('\n', ' ');
            System.out.println("CAUSE " + cause.getClass().getName() + ": " + message);
        }
        failure.printStackTrace();
    }
}
