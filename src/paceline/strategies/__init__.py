"""Training algorithms, written sequentially over teams."""

from paceline.strategies.daso import Daso
from paceline.strategies.diloco import Diloco, StreamingDiloco
from paceline.strategies.local_sgd import LocalSgd, PostLocalSgd
from paceline.strategies.options import Options
from paceline.strategies.periodic import Periodic
from paceline.strategies.registry import (
    make_strategy,
    name_and_options,
    register_strategy,
    strategy_class,
    strategy_names,
)
from paceline.strategies.replica import Replica
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.strategy import Strategy
from paceline.strategies.sync import Sync, SyncHierarchical

__all__ = [
    "Daso",
    "Diloco",
    "LocalSgd",
    "Options",
    "Periodic",
    "Phase",
    "PostLocalSgd",
    "Replica",
    "Schedule",
    "Strategy",
    "StreamingDiloco",
    "Sync",
    "SyncHierarchical",
    "make_strategy",
    "name_and_options",
    "register_strategy",
    "strategy_class",
    "strategy_names",
]
