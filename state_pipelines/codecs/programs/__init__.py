"""Layouts compiled to programs: instructions, kernel columns and Arrow arrays."""
