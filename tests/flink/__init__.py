"""Tests that drive the real Flink, and the harness that does it."""
