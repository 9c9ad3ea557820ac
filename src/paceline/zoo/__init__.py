"""The networks and data sets that the examples and benchmarks use.

Standard architectures, written here so that nothing is downloaded, with exactly the published
numbers of parameters; and small ones with small data, to race strategies on any machine.
"""

from __future__ import annotations

from paceline.zoo.data import (
    Data,
    data_names,
    default_data_for,
    load_data,
    load_data_for,
    load_digits,
    load_stdlib_text,
)
from paceline.zoo.registry import Kind, ZooEntry, build_model, model_names, zoo_entry

__all__ = [
    "Data",
    "Kind",
    "ZooEntry",
    "build_model",
    "data_names",
    "default_data_for",
    "load_data",
    "load_data_for",
    "load_digits",
    "load_stdlib_text",
    "model_names",
    "zoo_entry",
]
