"""Digests that do not depend on the order of records or rows."""
