"""Bootstrapping: rows of tables into a savepoint that Flink starts from."""
