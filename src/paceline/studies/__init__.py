"""How training scales, what limits it, and what to do about it."""

from __future__ import annotations

from paceline.studies.advise import Advice, advise
from paceline.studies.study import Study, study
from paceline.studies.table import StudyTable
from paceline.studies.trace_comparison import TraceComparison, compare_traces

__all__ = [
    "Advice",
    "Study",
    "StudyTable",
    "TraceComparison",
    "advise",
    "compare_traces",
    "study",
]
