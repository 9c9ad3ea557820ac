"""The table that is read line by line says what the whole profile says."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.kernels.family import family_of_op
from paceline.kernels.library import load_kernel_model
from paceline.kernels.profile import Profile, Timing, append, load_profile
from paceline.kernels.table import load_table
from paceline.steps.kernel import Kernel, Operand
from synthetic_profile import profile


def test_every_measured_kernel_is_found_with_its_timing(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.gz"
    whole = Profile(dict(profile().facts), dict(profile().timings))
    odd = Kernel("odd", (("name", "a,[b"), None, (1, 2.5), Operand("f32", (2, 3), (1, 2))))
    whole.timings[odd] = Timing(1.5e-6, 7, ("one", "two"))
    planned = Kernel("planned", (Operand("f32", (4,)),))
    whole.timings[planned] = Timing(None)
    whole.save(path)
    table, expected = load_table(path), load_profile(path).measured()
    assert len(table) == len(expected)
    assert dict(table) == expected
    assert table[odd] == Timing(1.5e-6, 7, ("one", "two"))
    assert planned not in table


def test_what_was_measured_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.gz"
    kernel = Kernel("relu", (Operand("f32", (4,)),))
    Profile(timings={kernel: Timing(None)}).save(path)
    append(path, {}, {kernel: Timing(2e-6)})
    append(path, {"more": 1}, {kernel: Timing(3e-6, 5)})
    assert load_table(path)[kernel] == Timing(3e-6, 5)


def test_kernels_of_some_operators_only(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.gz"
    profile().save(path)
    table = load_table(path)
    wanted = {
        k: table[k]
        for k in table
        if family_of_op(k.op) == "matmul" and k.operands[0].dtype == "bf16"
    }
    assert len(wanted) > 100

    def some(most: int) -> dict[Kernel, Timing]:
        return table.some_of(lambda op: family_of_op(op) == "matmul", dtype="bf16", most=most)

    assert some(len(wanted)) == wanted
    few = some(50)
    assert len(few) == 50
    assert few.items() <= wanted.items()
    assert table.some_of(lambda op: False, dtype="bf16", most=50) == {}


def test_a_damaged_table_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.kernels.gz"
    profile().save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="cut off or damaged"):
        load_table(path)
    path.write_bytes(b"no profile")
    with pytest.raises(ValueError, match="not a kernel profile"):
        load_table(path)
    with pytest.raises(ValueError, match="There is no profile"):
        load_table(tmp_path / "none.kernels.gz")


def test_the_same_device_has_the_same_model() -> None:
    assert load_kernel_model("h200") is load_kernel_model("h200")
    assert load_kernel_model("h200") is not load_kernel_model("a100")


def test_one_core_has_a_profile_of_its_own() -> None:
    model = load_kernel_model("cpu-core")
    assert model.fitted is not None
    assert model.fitted.facts["threads"] == 1
    assert not model.is_carried


def test_of_kernels_that_take_turns_each_kind_is_chosen(tmp_path: Path) -> None:
    kinds = ("recurrent", "recurrent_backward")
    made = {
        Kernel(kinds[index % 2], (Operand("f32", (8, index + 1)),)): Timing(1e-6)
        for index in range(200)
    }
    path = tmp_path / "mine.kernels.gz"
    Profile({}, made).save(path)
    found = load_table(path).some_of(lambda op: True, dtype="f32", most=100)
    assert all(sum(each.op == kind for each in found) > 25 for kind in kinds)
