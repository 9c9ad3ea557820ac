"""Strategies as objects: their constructors declare the options, and refuse in a sentence."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest

import paceline
from paceline.race.race import _named
from paceline.race.task import RaceSettings
from paceline.rehearse import predict
from paceline.strategies import (
    Daso,
    LocalSgd,
    Strategy,
    make_strategy,
    name_and_options,
    strategy_class,
    strategy_names,
)
from paceline.strategies.registry import _STRATEGIES, RESERVED_NAMES
from paceline.train import attach


@pytest.mark.parametrize("name", strategy_names())
def test_every_option_is_a_typed_keyword_with_a_description(name: str) -> None:
    kind = strategy_class(name)
    parameters = list(inspect.signature(kind).parameters.values())
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    assert all(parameter.annotation is not parameter.empty for parameter in parameters)
    fields = kind.options_type.model_fields
    assert [*fields] == [parameter.name for parameter in parameters]
    assert [field.default for field in fields.values()] == [p.default for p in parameters]
    assert all((field.description or "").endswith(".") for field in fields.values())
    assert kind().options == make_strategy(name).options


def test_an_object_keeps_what_it_was_given() -> None:
    daso = paceline.Daso(period=8, wire="int8")
    assert (daso.period, daso.delay) == (8, 1)
    assert daso.options.model_dump(exclude_unset=True) == {"period": 8, "wire": "int8"}
    assert (
        copy.copy(daso).options
        == daso.options
        == make_strategy("daso", period=8, wire="int8").options
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"perod": 3}, "Daso.perod is not a known key: did you mean 'period' or 'max_period'?"),
        ({"period": 0}, "Daso.period: input should be greater than or equal to 1, not 0"),
        ({"delay": 5}, "delay=5 must not be longer than period=4"),
        ({"weighting": "gpus"}, "Daso.weighting: input should be 'workers' or 'nodes', not 'gpus'"),
    ],
)
def test_wrong_options_of_an_object_are_one_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as problem:
        Daso(**options)
    assert str(problem.value) == said


def test_a_strategy_without_options_says_so() -> None:
    class Nothing(Strategy):
        pass

    with pytest.raises(ValueError, match=r"^Nothing has no options, and was given period$"):
        Nothing(period=3)  # type: ignore[call-arg]


class Own(Daso):
    """A user's own.

    Args:
        log: Not an option: it is no keyword alone.
        limit: What this one
            adds.

    """

    def __init__(self, log: list[int], *, limit: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.log = log
        self.limit = limit


def test_a_users_constructor_declares_options_too() -> None:
    own = Own(log=[1], limit=4, period=2)
    assert (own.log, own.limit, own.period) == ([1], 4, 2)
    assert own.options.model_dump(exclude_unset=True) == {"limit": 4, "period": 2}
    assert Own.options_type.model_fields["limit"].description == "What this one adds."
    with pytest.raises(ValueError, match=r"^Own.limit: .*not 'many'$"):
        Own([], limit="many")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^Own.perod"):
        Own([], perod=2)


class Colliding(Strategy):
    """Has an option that would never reach it."""

    def __init__(self, *, period: int = 2, trace: bool = False) -> None:
        super().__init__()


def test_options_cannot_collide_with_those_of_attach_and_predict() -> None:
    taken = {*inspect.signature(attach).parameters, *inspect.signature(predict).parameters}
    assert taken - {"options"} <= RESERVED_NAMES
    for name in strategy_names():
        assert not RESERVED_NAMES & strategy_class(name).options_type.model_fields.keys()
    with pytest.raises(ValueError, match=r"^Colliding has an option named 'trace', and attach\(\)"):
        paceline.register_strategy("colliding")(Colliding)
    assert "colliding" not in _STRATEGIES


def test_objects_and_names_race_alike() -> None:
    settings = RaceSettings(
        model="mlp", data="digits", epochs=1, batch=8, learning_rate=0.1, target=0.9, seed=0
    )
    names, with_options = _named(["ddp", LocalSgd(period=3), "daso"], settings)
    assert names == ["ddp", "local-sgd", "daso"]
    assert with_options.options == {"local-sgd": {"period": 3}}
    with pytest.raises(ValueError, match="daso races twice"):
        _named(["daso", Daso()], settings)
    with pytest.raises(ValueError, match="Own has no name"):
        name_and_options(Own([]))
