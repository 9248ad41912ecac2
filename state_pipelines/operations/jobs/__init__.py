"""Descriptions of the new job: files, classes, extracted types, and Flink configuration."""
