"""Binding a strategy to a PyTorch training loop."""

from paceline.train.attach import attach
from paceline.train.crew import CheckpointError
from paceline.train.pace import Pace
from paceline.train.stats import Stats

__all__ = ["CheckpointError", "Pace", "Stats", "attach"]
