"""Everything in this directory is loaded: a directory for each Flink job, with its `defs.yaml`, and Python files."""
