"""Profiles on disk: whole, appended to, damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from paceline.kernels.profile import Profile, Timing, append, load_profile
from paceline.steps import Kernel, Operand


def kernel(size: int, op: str = "relu") -> Kernel:
    each = Operand("f32", (size,))
    return Kernel(op, (each,), outputs=(each,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "some.kernels.gz"


def make(num_kernels: int = 200) -> Profile:
    timings = {kernel(n): Timing(float(f"{n}e-6"), n, ("a", "b")) for n in range(1, num_kernels)}
    timings |= {kernel(n, "exp"): Timing(None) for n in range(1, num_kernels)}
    return Profile({"device_name": "Some GPU", "memory_bytes": 8, "host": {"x": [1, 2]}}, timings)


def test_a_profile_survives_its_file(path: Path) -> None:
    profile = make()
    profile.save(path)
    again = load_profile(path)
    assert again.timings == profile.timings
    assert list(again.timings) == list(profile.timings)
    assert [k.outputs for k in again.timings] == [k.outputs for k in profile.timings]
    assert again.facts == {**profile.facts, "format": "paceline-kernels", "version": 1}
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert again.measured() == {k: t for k, t in profile.timings.items() if k.op == "relu"}
    assert again.planned() == [k for k in profile.timings if k.op == "exp"]


def test_times_keep_five_digits(path: Path) -> None:
    Profile({}, {kernel(1): Timing(1.23456789e-5)}).save(path)
    (timing,) = load_profile(path).timings.values()
    assert timing.seconds == 1.2346e-5


def test_what_is_appended_replaces_what_was_planned(path: Path) -> None:
    make().save(path)
    append(path, {"failed": {}}, {kernel(3, "exp"): Timing(3e-3, 7, ("c",))})
    more = {kernel(1): Timing(9.0), kernel(4, "tan"): Timing(1.0)}
    append(path, {"device_name": "Another"}, more)
    again = load_profile(path)
    assert again.facts["device_name"] == "Another"
    assert again.facts["failed"] == {}
    assert again.facts["memory_bytes"] == 8
    assert again.timings[kernel(3, "exp")] == Timing(3e-3, 7, ("c",))
    assert again.timings[kernel(1)] == Timing(9.0)
    assert again.timings[kernel(4, "tan")] == Timing(1.0)
    assert len(again.timings) == 2 * 199 + 1
    again.save(path)  # compacted, it says the same
    assert load_profile(path) == again


def sentence(path: Path) -> str:
    with pytest.raises(ValueError, match=r".") as raised:
        load_profile(path)
    text = str(raised.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def test_a_missing_profile(path: Path) -> None:
    assert "There is no profile" in sentence(path)
    assert "paceline measure kernels" in sentence(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_profile(path: Path, share: float) -> None:
    make().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "is cut off or damaged" in sentence(path)


def test_a_damaged_profile(path: Path) -> None:
    make().save(path)
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 20] = bytes(each ^ 255 for each in whole[middle : middle + 20])
    path.write_bytes(whole)
    assert "damaged" in sentence(path) or "not a kernel profile" in sentence(path)


def test_another_schema_version(path: Path) -> None:
    Profile({"version": 7}).save(path)
    text = sentence(path)
    assert "schema version 7, this paceline reads 1; measure again" in text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not gzip at all",
        gzip.compress(b""),
        gzip.compress(b"no json\n"),
        gzip.compress(b"[1, 2]\n"),
        gzip.compress(b'{"format": "something"}\n'),
        gzip.compress(b'{"format": "paceline-kernels"}\n'),
        gzip.compress(b"\xff\xfe\n"),
        gzip.compress(json.dumps({"format": "paceline-kernels", "version": 1}).encode() + b"\n[3]"),
        gzip.compress(json.dumps({"format": "paceline-kernels", "version": 1}).encode() + b"\n3"),
    ],
    ids=map(str, range(10)),  # a compressed text has the time in it
)
def test_what_is_no_profile(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert "is not a kernel profile" in sentence(path)
