"""Keyed state: the header, and the formats of its files."""
