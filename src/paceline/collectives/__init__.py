"""What one collective costs: closed formulas, over links with latency, bandwidth, efficiency."""

from paceline.collectives.cost import Algorithm, collective_s
from paceline.collectives.topology import Numbers, Route, Topology

__all__ = [
    "Algorithm",
    "Numbers",
    "Route",
    "Topology",
    "collective_s",
]
