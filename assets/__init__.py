"""The deployment of this repository: one directory with a YAML file per Flink job below `defs/`."""
