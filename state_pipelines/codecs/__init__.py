"""Codecs: serializer trees to byte layouts, and layouts to values (scalar) and Arrow columns (compiled kernels)."""
