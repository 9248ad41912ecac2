"""The native format of the heap backend (`hashmap`)."""
