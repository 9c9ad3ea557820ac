"""Who works together: teams of workers, and the teams of one job as a worker sees them."""

from paceline.teams.collectives import CollectiveName, with_collective
from paceline.teams.team import Op, Pending, Team, TeamError
from paceline.teams.workers import Workers, find_workers

__all__ = [
    "CollectiveName",
    "Op",
    "Pending",
    "Team",
    "TeamError",
    "Workers",
    "find_workers",
    "with_collective",
]
