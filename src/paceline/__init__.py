"""paceline: know what data-parallel training will cost, then make it cost less.

Public names are imported on first use (PEP 562), so that ``import paceline`` and
``paceline --help`` cost nothing that they do not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.cluster import Cluster, Device, Link, Node, load_cluster
    from paceline.rehearse import Prediction, predict
    from paceline.steps import Step, load_step
    from paceline.strategies import Strategy, register_strategy
    from paceline.teams import Workers, find_workers
    from paceline.train import CheckpointError, Pace, attach

# public name -> the module that defines it
_HOMES = {
    "Cluster": "paceline.cluster",
    "Device": "paceline.cluster",
    "Link": "paceline.cluster",
    "Node": "paceline.cluster",
    "load_cluster": "paceline.cluster",
    "Prediction": "paceline.rehearse",
    "predict": "paceline.rehearse",
    "Step": "paceline.steps",
    "load_step": "paceline.steps",
    "Strategy": "paceline.strategies",
    "register_strategy": "paceline.strategies",
    "Workers": "paceline.teams",
    "find_workers": "paceline.teams",
    "CheckpointError": "paceline.train",
    "Pace": "paceline.train",
    "attach": "paceline.train",
}

__all__ = [
    "CheckpointError",
    "Cluster",
    "Device",
    "Link",
    "Node",
    "Pace",
    "Prediction",
    "Step",
    "Strategy",
    "Workers",
    "__version__",
    "attach",
    "find_workers",
    "load_cluster",
    "load_step",
    "predict",
    "register_strategy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
