"""New files of a snapshot: encoded and copied records, spills, publication."""
