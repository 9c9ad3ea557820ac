"""Training algorithms, written sequentially over teams."""

from paceline.strategies.co2 import Co2
from paceline.strategies.daso import Daso
from paceline.strategies.demo import Demo
from paceline.strategies.diloco import Diloco, StreamingDiloco
from paceline.strategies.gossip import Gossip
from paceline.strategies.local_sgd import LocalSgd, PostLocalSgd
from paceline.strategies.options import Options
from paceline.strategies.outer import OuterOptimizer
from paceline.strategies.periodic import Periodic
from paceline.strategies.registry import (
    comparable_strategy_names,
    make_strategy,
    name_and_options,
    register_strategy,
    strategy_class,
    strategy_names,
)
from paceline.strategies.replica import Replica
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.slowmo import SlowMo
from paceline.strategies.strategy import Strategy
from paceline.strategies.sync import Sync, SyncHierarchical

__all__ = [
    "Co2",
    "Daso",
    "Demo",
    "Diloco",
    "Gossip",
    "LocalSgd",
    "Options",
    "OuterOptimizer",
    "Periodic",
    "Phase",
    "PostLocalSgd",
    "Replica",
    "Schedule",
    "SlowMo",
    "Strategy",
    "StreamingDiloco",
    "Sync",
    "SyncHierarchical",
    "comparable_strategy_names",
    "make_strategy",
    "name_and_options",
    "register_strategy",
    "strategy_class",
    "strategy_names",
]
