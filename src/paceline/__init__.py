"""paceline: know what data-parallel training will cost, then make it cost less.

Public names are imported on first use (PEP 562), so that ``import paceline`` and
``paceline --help`` cost nothing that they do not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.cluster import (
        Cluster,
        Device,
        Link,
        Node,
        device_names,
        dump_cluster,
        load_cluster,
        load_device,
        preset_names,
    )
    from paceline.collectives import Route, Topology, collective_s
    from paceline.collectives.topology import topology_of
    from paceline.kernels import KernelModel, load_kernel_model, load_profile
    from paceline.lab.lab import Lab
    from paceline.lab.layout import lay_out
    from paceline.measure.kernel_fit import fit_profile
    from paceline.measure.links import measure_links
    from paceline.race.race import Race, run_race
    from paceline.race.task import RaceSettings
    from paceline.rehearse import (
        Conditions,
        Prediction,
        Programs,
        Recording,
        Rehearsal,
        Timeline,
        play,
        predict,
        price,
        record,
        summarise,
    )
    from paceline.steps import Capture, Step, capture_step, load_step
    from paceline.strategies import (
        Daso,
        Diloco,
        LocalSgd,
        Options,
        Periodic,
        Phase,
        PostLocalSgd,
        Replica,
        Schedule,
        Strategy,
        StreamingDiloco,
        Sync,
        SyncHierarchical,
        make_strategy,
        register_strategy,
        strategy_names,
    )
    from paceline.studies import Study, StudyTable, study
    from paceline.teams import Op, Pending, Team, TeamError, Workers, find_workers
    from paceline.traces import Span, read_trace
    from paceline.train import CheckpointError, Pace, Stats, attach

# module -> the public names that it defines
_HOMES = {
    name: home
    for home, names in {
        "paceline.cluster": (
            "Cluster Device Link Node device_names dump_cluster "
            "load_cluster load_device preset_names"
        ),
        "paceline.collectives": "Route Topology collective_s",
        "paceline.collectives.topology": "topology_of",
        "paceline.kernels": "KernelModel load_kernel_model load_profile",
        "paceline.lab.lab": "Lab",
        "paceline.lab.layout": "lay_out",
        "paceline.measure.kernel_fit": "fit_profile",
        "paceline.measure.links": "measure_links",
        "paceline.race.race": "Race run_race",
        "paceline.race.task": "RaceSettings",
        "paceline.rehearse": (
            "Conditions Prediction Programs Recording Rehearsal Timeline "
            "play predict price record summarise"
        ),
        "paceline.steps": "Capture Step capture_step load_step",
        "paceline.strategies": (
            "Daso Diloco LocalSgd Options Periodic Phase PostLocalSgd Replica "
            "Schedule Strategy StreamingDiloco Sync SyncHierarchical make_strategy "
            "register_strategy strategy_names"
        ),
        "paceline.studies": "Study StudyTable study",
        "paceline.teams": "Op Pending Team TeamError Workers find_workers",
        "paceline.traces": "Span read_trace",
        "paceline.train": "CheckpointError Pace Stats attach",
    }.items()
    for name in names.split()
}

__all__ = [
    "Capture",
    "CheckpointError",
    "Cluster",
    "Conditions",
    "Daso",
    "Device",
    "Diloco",
    "KernelModel",
    "Lab",
    "Link",
    "LocalSgd",
    "Node",
    "Op",
    "Options",
    "Pace",
    "Pending",
    "Periodic",
    "Phase",
    "PostLocalSgd",
    "Prediction",
    "Programs",
    "Race",
    "RaceSettings",
    "Recording",
    "Rehearsal",
    "Replica",
    "Route",
    "Schedule",
    "Span",
    "Stats",
    "Step",
    "Strategy",
    "StreamingDiloco",
    "Study",
    "StudyTable",
    "Sync",
    "SyncHierarchical",
    "Team",
    "TeamError",
    "Timeline",
    "Topology",
    "Workers",
    "__version__",
    "attach",
    "capture_step",
    "collective_s",
    "device_names",
    "dump_cluster",
    "find_workers",
    "fit_profile",
    "lay_out",
    "load_cluster",
    "load_device",
    "load_kernel_model",
    "load_profile",
    "load_step",
    "make_strategy",
    "measure_links",
    "play",
    "predict",
    "preset_names",
    "price",
    "read_trace",
    "record",
    "register_strategy",
    "run_race",
    "strategy_names",
    "study",
    "summarise",
    "topology_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
