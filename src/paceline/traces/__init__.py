"""Spans, the trace file format, and the observer of waits, bytes and spans."""
