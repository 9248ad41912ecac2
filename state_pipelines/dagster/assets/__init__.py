"""Assets of a Flink job: one per module, with a function that builds it."""
