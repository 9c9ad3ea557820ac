from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cluster import units

positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("100 Mbit/s", 12_500_000),
        ("100mbit", 12_500_000),
        ("100 MBIT/s", 12_500_000),
        ("1gbit", 125_000_000),
        ("10 Gbit/s", 1_250_000_000),
        ("8 bit/s", 1),
        ("12.5 MB/s", 12_500_000),
        ("  25GB/s ", 25_000_000_000),
        ("1.5 GiB/s", 3 * 2**29),
        ("3.35 TB/s", 3_350_000_000_000),
        ("2.5e1 kB/s", 25_000),
        (".5 MB/s", 500_000),
    ],
)
def test_bandwidth_in_bytes_per_second(text: str, bytes_per_s: float) -> None:
    assert units.parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    "text", ["100 Mb", "100 Mb/s", "100 Mbps", "100 MB", "100 MBps", "100 mb/s", "100", "100 M"]
)
def test_ambiguous_bandwidth_is_refused_with_both_spellings(text: str) -> None:
    with pytest.raises(ValueError, match=r"'100 Mbit/s' for bits or '100 MB/s' for bytes"):
        units.parse_bandwidth(text)


def test_the_advice_keeps_the_users_number_and_prefix() -> None:
    with pytest.raises(ValueError, match="'10 Gbit/s' for bits or '10 GB/s' for bytes"):
        units.parse_bandwidth("10 Gb")
    with pytest.raises(ValueError, match="write '2 PFLOP/s'"):
        units.parse_speed("2 PFLOPS")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5 us", 5e-6),
        ("5 \N{MICRO SIGN}s", 5e-6),
        ("5 \N{GREEK SMALL LETTER MU}s", 5e-6),
        ("0.2 ms", 2e-4),
        ("1 s", 1),
        ("700 ns", 7e-7),
        ("0 s", 0),
    ],
)
def test_duration_in_seconds(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("80 GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("512 MiB", 2**29), ("1.5 kB", 1500)],
)
def test_size_in_bytes(text: str, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "flop_per_s"),
    [("19.5 TFLOP/s", 19.5e12), ("1 PFLOP/s", 1e15), ("200 GFLOP/s", 2e11)],
)
def test_speed_in_flop_per_second(text: str, flop_per_s: float) -> None:
    assert units.parse_speed(text) == flop_per_s


@pytest.mark.parametrize(
    ("parse", "unit"),
    [
        (units.parse_bandwidth, "MB/s"),
        (units.parse_duration, "us"),
        (units.parse_size, "GB"),
        (units.parse_speed, "TFLOP/s"),
    ],
)
@pytest.mark.parametrize("number", ["-5", "nan", "inf", "1e9999", "", "1,5", "1_0", "five", "1e"])
def test_what_is_no_quantity_is_refused_in_one_sentence(
    parse: Callable[[object], float], unit: str, number: str
) -> None:
    with pytest.raises(ValueError, match="write '") as caught:
        parse(f"{number} {unit}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bandwidth, "0 MB/s"),
        (units.parse_size, "0 GB"),
        (units.parse_speed, "0 TFLOP/s"),
    ],
)
def test_zero_is_refused_where_it_has_no_sense(parse: Callable[[object], float], text: str) -> None:
    with pytest.raises(ValueError, match="is zero: write '"):
        parse(text)


def test_what_no_float_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="is too large: write '"):
        units.parse_bandwidth("1e999 GB/s")
    with pytest.raises(ValueError, match="is too small: write '"):
        units.parse_duration("1e-999 s")
    with pytest.raises(ValueError, match="is less than one byte: write '"):
        units.parse_size("0.1 B")


@pytest.mark.parametrize("value", [100, 1.5, float("nan")])
def test_a_number_has_no_unit(value: float) -> None:
    for parse in (units.parse_bandwidth, units.parse_duration, units.parse_size, units.parse_speed):
        with pytest.raises(ValueError, match="has no unit: write '"):
            parse(value)


@pytest.mark.parametrize("value", [None, True, [], {}])
def test_what_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a bandwidth: write '"):
        units.parse_bandwidth(value)


@given(positive)
def test_written_quantities_are_read_back_exactly(value: float) -> None:
    assert units.parse_bandwidth(units.write_bandwidth(value)) == value
    assert units.parse_duration(units.write_duration(value)) == value
    assert units.parse_speed(units.write_speed(value)) == value


@given(st.integers(min_value=1))
def test_written_sizes_are_read_back_exactly(size_bytes: int) -> None:
    assert units.parse_size(units.write_size(size_bytes)) == size_bytes


@given(st.floats(min_value=1e-6, max_value=1e21))
def test_formatted_bandwidth_is_near_and_reads_back(value: float) -> None:
    for bits in (False, True):
        text = units.format_bandwidth(value, bits=bits)
        assert units.parse_bandwidth(text) == pytest.approx(value, rel=1e-3)


@given(st.text())
def test_any_text_is_read_or_refused_but_nothing_else(text: str) -> None:
    try:
        assert units.parse_bandwidth(text) > 0
    except ValueError as problem:
        assert "write '" in str(problem)
        assert "\n" not in str(problem)


def test_written_text_is_the_one_a_person_would_write() -> None:
    assert units.write_duration(3.4e-6) == "3.4 us"
    assert units.write_duration(0) == "0 s"
    assert units.write_size(80 * 10**9) == "80 GB"
    assert units.write_size(2**34) == "16 GiB"
    assert units.write_speed(19.5e12) == "19.5 TFLOP/s"


def test_formats_for_people() -> None:
    assert units.format_bandwidth(12_500_000) == "12.5 MB/s"
    assert units.format_bandwidth(4e11, bits=True) == "3200 Gbit/s"
    assert units.format_duration(0) == "0 s"
    assert units.format_duration(2e-4) == "200 us"
    assert units.format_duration(1e-12) == "0.001 ns"
    assert units.format_size(141 * 10**9) == "141 GB"
    assert units.format_speed(989.4e12) == "989.4 TFLOP/s"
