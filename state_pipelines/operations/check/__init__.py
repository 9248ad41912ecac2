"""`check`: the verdict whether the state of a snapshot restores in a new job."""
