"""Avro records in the encoding of Flink."""
