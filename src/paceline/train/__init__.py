"""Binding a strategy to a PyTorch training loop."""

from paceline.train.attach import attach
from paceline.train.batch_norm import SyncBatchNorm
from paceline.train.crew import CheckpointError
from paceline.train.forecast import Forecast
from paceline.train.loading.loader import Loader
from paceline.train.loading.shares import share_batch
from paceline.train.logger import Logger
from paceline.train.objective import Objective
from paceline.train.pace import Pace
from paceline.train.stats import Stats

__all__ = [
    "CheckpointError",
    "Forecast",
    "Loader",
    "Logger",
    "Objective",
    "Pace",
    "Stats",
    "SyncBatchNorm",
    "attach",
    "share_batch",
]
