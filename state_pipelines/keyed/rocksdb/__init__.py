"""Keyed state in the files of a RocksDB database."""
