"""paceline: know what data-parallel training will cost, then make it cost less.

Public names are imported on first use (PEP 562), so that ``import paceline`` and
``paceline --help`` cost nothing that they do not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.auto import Auto
    from paceline.cluster import (
        Cluster,
        Device,
        Host,
        Link,
        Node,
        Price,
        cheapest_price,
        device_names,
        dump_cluster,
        host_names,
        load_cluster,
        load_device,
        load_host,
        preset_names,
    )
    from paceline.collectives import Route, Topology, collective_s
    from paceline.collectives.topology import topology_of
    from paceline.integrations.mlflow import MlflowLogger
    from paceline.integrations.tensorboard import TensorBoardLogger
    from paceline.integrations.wandb import WandbLogger
    from paceline.kernels import KernelModel, load_kernel_model, load_profile
    from paceline.lab.faults import Fault, parse_fault
    from paceline.lab.lab import Lab
    from paceline.lab.layout import lay_out
    from paceline.lab.timetable import LabEvent
    from paceline.measure.host_speed import HostSpeed, measure_host_speed
    from paceline.measure.kernel_fit import fit_profile
    from paceline.measure.links import measure_links
    from paceline.race.race import Race, race_in_job, run_race
    from paceline.race.task import RaceSettings
    from paceline.rehearse import (
        Conditions,
        MixedPrediction,
        Prediction,
        Programs,
        Recording,
        Rehearsal,
        Timeline,
        play,
        predict,
        predict_mixed,
        price,
        record,
        summarise,
    )
    from paceline.steps import Capture, Step, capture_step, load_step
    from paceline.strategies import (
        Co2,
        Daso,
        Demo,
        Diloco,
        Gossip,
        LocalSgd,
        Options,
        OuterOptimizer,
        Periodic,
        Phase,
        PostLocalSgd,
        Replica,
        Schedule,
        SlowMo,
        Strategy,
        StreamingDiloco,
        Sync,
        SyncHierarchical,
        make_strategy,
        register_strategy,
        strategy_names,
    )
    from paceline.studies import (
        Advice,
        Study,
        StudyTable,
        TraceComparison,
        advise,
        compare_traces,
        study,
    )
    from paceline.studies.report import write_report
    from paceline.teams import Op, Pending, Team, TeamError, Workers, find_workers, with_collective
    from paceline.teams.meeting import MeetingServer, MeetingSettings
    from paceline.traces import Span, read_trace
    from paceline.train import (
        CheckpointError,
        Forecast,
        Loader,
        Logger,
        Objective,
        Pace,
        Stats,
        SyncBatchNorm,
        attach,
        share_batch,
    )

# module -> the public names that it defines
_HOMES = {
    name: home
    for home, names in {
        "paceline.auto": "Auto",
        "paceline.cluster": (
            "Cluster Device Host Link Node Price cheapest_price device_names dump_cluster "
            "host_names load_cluster load_device load_host preset_names"
        ),
        "paceline.collectives": "Route Topology collective_s",
        "paceline.collectives.topology": "topology_of",
        "paceline.integrations.mlflow": "MlflowLogger",
        "paceline.integrations.tensorboard": "TensorBoardLogger",
        "paceline.integrations.wandb": "WandbLogger",
        "paceline.kernels": "KernelModel load_kernel_model load_profile",
        "paceline.lab.faults": "Fault parse_fault",
        "paceline.lab.lab": "Lab",
        "paceline.lab.layout": "lay_out",
        "paceline.lab.timetable": "LabEvent",
        "paceline.measure.host_speed": "HostSpeed measure_host_speed",
        "paceline.measure.kernel_fit": "fit_profile",
        "paceline.measure.links": "measure_links",
        "paceline.race.race": "Race race_in_job run_race",
        "paceline.race.task": "RaceSettings",
        "paceline.rehearse": (
            "Conditions MixedPrediction Prediction Programs Recording Rehearsal Timeline "
            "play predict predict_mixed price record summarise"
        ),
        "paceline.steps": "Capture Step capture_step load_step",
        "paceline.strategies": (
            "Co2 Daso Demo Diloco Gossip LocalSgd Options OuterOptimizer Periodic Phase "
            "PostLocalSgd Replica Schedule SlowMo Strategy StreamingDiloco Sync "
            "SyncHierarchical make_strategy register_strategy strategy_names"
        ),
        "paceline.studies": "Advice Study StudyTable TraceComparison advise compare_traces study",
        "paceline.studies.report": "write_report",
        "paceline.teams": "Op Pending Team TeamError Workers find_workers with_collective",
        "paceline.teams.meeting": "MeetingServer MeetingSettings",
        "paceline.traces": "Span read_trace",
        "paceline.train": (
            "CheckpointError Forecast Loader Logger Objective Pace Stats SyncBatchNorm attach "
            "share_batch"
        ),
    }.items()
    for name in names.split()
}

__all__ = [
    "Advice",
    "Auto",
    "Capture",
    "CheckpointError",
    "Cluster",
    "Co2",
    "Conditions",
    "Daso",
    "Demo",
    "Device",
    "Diloco",
    "Fault",
    "Forecast",
    "Gossip",
    "Host",
    "HostSpeed",
    "KernelModel",
    "Lab",
    "LabEvent",
    "Link",
    "Loader",
    "LocalSgd",
    "Logger",
    "MeetingServer",
    "MeetingSettings",
    "MixedPrediction",
    "MlflowLogger",
    "Node",
    "Objective",
    "Op",
    "Options",
    "OuterOptimizer",
    "Pace",
    "Pending",
    "Periodic",
    "Phase",
    "PostLocalSgd",
    "Prediction",
    "Price",
    "Programs",
    "Race",
    "RaceSettings",
    "Recording",
    "Rehearsal",
    "Replica",
    "Route",
    "Schedule",
    "SlowMo",
    "Span",
    "Stats",
    "Step",
    "Strategy",
    "StreamingDiloco",
    "Study",
    "StudyTable",
    "Sync",
    "SyncBatchNorm",
    "SyncHierarchical",
    "Team",
    "TeamError",
    "TensorBoardLogger",
    "Timeline",
    "Topology",
    "TraceComparison",
    "WandbLogger",
    "Workers",
    "__version__",
    "advise",
    "attach",
    "capture_step",
    "cheapest_price",
    "collective_s",
    "compare_traces",
    "device_names",
    "dump_cluster",
    "find_workers",
    "fit_profile",
    "host_names",
    "lay_out",
    "load_cluster",
    "load_device",
    "load_host",
    "load_kernel_model",
    "load_profile",
    "load_step",
    "make_strategy",
    "measure_host_speed",
    "measure_links",
    "parse_fault",
    "play",
    "predict",
    "predict_mixed",
    "preset_names",
    "price",
    "race_in_job",
    "read_trace",
    "record",
    "register_strategy",
    "run_race",
    "share_batch",
    "strategy_names",
    "study",
    "summarise",
    "topology_of",
    "with_collective",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
