"""Live state of one subtask: Flink's keyed and operator state backends."""
