"""The search for the `hashCode` of user classes, from the key groups that a snapshot records."""
