"""How training scales, what limits it, and what to do about it."""

from __future__ import annotations

from paceline.studies.study import Study, study
from paceline.studies.table import StudyTable

__all__ = ["Study", "StudyTable", "study"]
