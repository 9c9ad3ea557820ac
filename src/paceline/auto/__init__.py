"""Chooses a strategy in the running job, by measuring it and asking the cost model."""

from paceline.auto.auto import Auto

__all__ = ["Auto"]
