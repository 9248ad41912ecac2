"""Counts, sizes and hottest keys per key group."""
