"""Arithmetic over very long arrays, on numpy or on a GPU with the same results: see `kernels`."""
