"""The canonical format: savepoints, and full snapshots of RocksDB up to Flink 1.15."""
