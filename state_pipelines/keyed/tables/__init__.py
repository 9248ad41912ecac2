"""Keyed states as Arrow tables, and rows back to records."""
