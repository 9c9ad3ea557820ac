"""The explorer: a local page whose curves move as its sliders do."""

from __future__ import annotations

from paceline.studies.explorer.explorer import Explorer

__all__ = ["Explorer"]
