"""Keys: as users write them, as bytes, and their Java hash codes."""
