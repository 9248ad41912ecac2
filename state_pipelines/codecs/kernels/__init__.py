"""Compiled kernels that run layout programs, and the buffers that they work on."""
