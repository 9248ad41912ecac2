"""One directory for each Flink job, with its `defs.yaml`."""
