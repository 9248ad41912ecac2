"""`convert`: the same state in another format or at another location."""
