"""Measurements on large snapshots that the library writes itself."""
