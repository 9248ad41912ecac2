"""Values of the table runtime."""
