"""Timing real hardware: kernels, the host, links and workers; fitting models to the timings."""
