"""``--option``: which strategy it is of, and what is said where that is not clear."""

from __future__ import annotations

import pytest

from paceline.cli.options import parse_options


def test_one_strategy_needs_no_name() -> None:
    texts = ["period=8", "daso.wire=int8", "merge=stale"]
    wanted = {"daso": {"period": 8, "wire": "int8", "merge": "stale"}}
    assert parse_options(texts, ["daso"]) == wanted
    # DDP and the floor are entries of a race, and have no options.
    assert parse_options(texts, ["ddp", "daso", "floor"]) == wanted
    assert parse_options(["rate_bytes_per_s=0.5"], ["daso"]) == {"daso": {"rate_bytes_per_s": 0.5}}


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        ("period=8", ["daso", "diloco"], "does not say which strategy.*daso, diloco was asked for"),
        ("period=8", ["ddp"], "no strategy was asked for"),
        ("period", ["daso"], "is not understood"),
        ("daso.=8", ["daso"], "is not understood"),
        ("diloco.period=8", ["daso"], "'diloco' is not a strategy that was asked for"),
        ("perod=8", ["daso"], "did you mean 'period'"),
    ],
)
def test_others_are_refused_in_a_sentence(text: str, names: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_options([text], names)
