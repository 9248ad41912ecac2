"""Operator (non-keyed) state: the header, the elements, and their redistribution."""
