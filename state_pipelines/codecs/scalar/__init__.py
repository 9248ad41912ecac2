"""The scalar codec: one value at a time."""
