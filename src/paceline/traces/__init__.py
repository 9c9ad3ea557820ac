"""Spans, the trace file format, and the one observer of waits, bytes and spans."""

from paceline.traces.trace import Span, read_trace

__all__ = ["Span", "read_trace"]
