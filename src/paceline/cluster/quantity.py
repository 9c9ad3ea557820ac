"""Quantities as fields: numbers in Python, texts with their units in a TOML file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializationInfo,
    ValidationInfo,
)

from paceline.cluster import units
from paceline.cluster.record import Accepts


def _read(parse: Callable[[object], float]) -> BeforeValidator:
    def read(value: Any, info: ValidationInfo) -> Any:
        if not info.context:
            return value
        try:
            return parse(value)
        except ValueError as problem:
            raise ValueError(f"= {problem}") from None

    return BeforeValidator(read)


def _write(write: Callable[[Any], str]) -> PlainSerializer:
    def serialize(value: Any, info: SerializationInfo) -> Any:
        return write(value) if info.context else value

    return PlainSerializer(serialize)


Seconds = Annotated[
    float,
    Field(ge=0),
    Accepts("a duration with its unit, such as '5 us'"),
    _read(units.parse_duration),
    _write(units.write_duration),
]
Bandwidth = Annotated[
    float,
    Field(gt=0),
    Accepts("a bandwidth with its unit, such as '10 Gbit/s'"),
    _read(units.parse_bandwidth),
    _write(units.write_bandwidth),
]
Bytes = Annotated[
    int,
    Field(ge=0),
    Accepts("a size with its unit, such as '80 GB'"),
    _read(units.parse_size),
    _write(units.write_size),
]
Speed = Annotated[
    float,
    Field(gt=0),
    Accepts("a speed with its unit, such as '19.5 TFLOP/s'"),
    _read(units.parse_speed),
    _write(units.write_speed),
]
