"""Training algorithms, written sequentially over teams."""

from paceline.strategies.daso import Daso, DasoOptions
from paceline.strategies.diloco import Diloco, StreamingDiloco
from paceline.strategies.local_sgd import LocalSgd, PostLocalSgd
from paceline.strategies.periodic import Periodic, PeriodicOptions
from paceline.strategies.registry import (
    make_strategy,
    register_strategy,
    strategy_class,
    strategy_names,
)
from paceline.strategies.replica import Replica
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.strategy import Options, Strategy
from paceline.strategies.sync import Sync, SyncHierarchical

__all__ = [
    "Daso",
    "DasoOptions",
    "Diloco",
    "LocalSgd",
    "Options",
    "Periodic",
    "PeriodicOptions",
    "Phase",
    "PostLocalSgd",
    "Replica",
    "Schedule",
    "Strategy",
    "StreamingDiloco",
    "Sync",
    "SyncHierarchical",
    "make_strategy",
    "register_strategy",
    "strategy_class",
    "strategy_names",
]
