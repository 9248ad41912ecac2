"""Distribution of keyed state over key groups and subtasks."""
