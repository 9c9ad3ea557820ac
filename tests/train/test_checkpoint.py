"""What a checkpoint holds, on which layouts it loads, and what is said about one that does not."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer

import workloads
from jobs import run_job
from paceline.strategies import Strategy, Sync
from paceline.strategies.replica import Replica
from paceline.teams import Workers
from paceline.train import CheckpointError, Pace, attach
from paceline.train.plain import as_plain

EARLY: dict[str, Any] = {"sync_steps": 6, "wire": "int8", "period": 2}
# A model, a strategy, and how it is attached.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "daso": ("normed", "daso", {"warmup_steps": 1, "late": "wait"}),
    "sync": ("normed", "sync", {}),
    "sync-hierarchical": ("normed", "sync-hierarchical", {}),
    "keep": ("normed", "sync", {"buffers": "keep"}),
    # Saved at step 5: while the synchronous steps last, and after them.
    "early": ("plain", "post-local-sgd", EARLY),
    "early-normed": ("normed", "post-local-sgd", EARLY),
    "late": ("plain", "post-local-sgd", {"sync_steps": 4}),
}
# What differs between workers, if the checkpoint is not converted.
DIFFERING = {
    "daso": "under Daso its workers had different models between exchanges",
    "keep": "under Sync its workers had different buffers",
    "early-normed": "under PostLocalSgd its workers had different buffers",
    "late": "under PostLocalSgd its workers had different models between exchanges",
}
NUM_STEPS = 5

Snapshot = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Parameters and averages at the save, and parameters a step after it."""


def train(workers: Workers, model: torch.nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(workloads.batch_loss(model, step, workers.world.rank))
        optimizer.step()


def start(workers: Workers, name: str, *, seed: int = 0) -> tuple[torch.nn.Module, Optimizer, Pace]:
    kind, strategy, options = CASES[name]
    model, optimizer = workloads.build(kind, "adamw", seed=seed)
    return model, optimizer, attach(model, optimizer, strategy, workers=workers, **options)


def averages_of(optimizer: Optimizer) -> torch.Tensor:
    """AdamW's averages, which a resumed run needs as much as the parameters."""
    names = ("exp_avg", "exp_avg_sq")
    return torch.cat([s[name].flatten().cpu() for s in optimizer.state.values() for name in names])


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(CheckpointError) as problem:
        call()
    message = str(problem.value)
    assert "\n" not in message
    return message


def save_each(
    workers: Workers, folder: str, names: Sequence[str] = tuple(CASES)
) -> dict[str, Snapshot]:
    snapshots = {}
    for name in names:
        model, optimizer, pace = start(workers, name)
        train(workers, model, optimizer, range(1, NUM_STEPS + 1))
        pace.save(Path(folder, name))
        at_save = workloads.flat_state(model), averages_of(optimizer)
        train(workers, model, optimizer, range(NUM_STEPS + 1, NUM_STEPS + 2))
        snapshots[name] = (*at_save, workloads.flat_state(model))
        pace.detach()
    return snapshots


def load_each(workers: Workers, folder: str) -> tuple[dict[str, Snapshot], dict[str, str]]:
    converted, messages = {}, {}
    for name in CASES:
        model, optimizer, pace = start(workers, name, seed=7)
        place, before = Path(folder, name), workloads.flat_state(model)
        if name in DIFFERING:
            messages[name] = refused(partial(pace.load, place))
            assert torch.equal(workloads.flat_state(model), before)
            assert pace.strategy.step == 0
            continue
        pace.load(place)
        assert pace.strategy.step == NUM_STEPS
        loaded = workloads.flat_state(model), averages_of(optimizer)
        train(workers, model, optimizer, range(NUM_STEPS + 1, NUM_STEPS + 2))
        converted[name] = (*loaded, workloads.flat_state(model))
        pace.detach()
    return converted, messages


def test_another_layout_is_converted_or_refused(tmp_path: Path) -> None:
    saved = run_job(save_each, str(tmp_path))[0]
    layouts = {(2,): "1 node with 2 workers", (1, 1): "2 nodes with 1 worker each"}
    layouts |= {(4,): "1 node with 4 workers"}
    for nodes, words in layouts.items():
        for converted, messages in run_job(load_each, str(tmp_path), nodes=nodes):
            assert converted.keys() | messages.keys() == CASES.keys()
            for name, (parameters, averages, after) in converted.items():
                assert torch.equal(parameters, saved[name][0])
                assert torch.equal(averages, saved[name][1])
                if sum(nodes) == 4:
                    # The same four batches: the same step, but for the order of a sum.
                    torch.testing.assert_close(after, saved[name][2], rtol=0, atol=1e-5)
            for name, message in messages.items():
                assert DIFFERING[name] in message
                layout = f"saved on 2 nodes with 2 workers each, and this job has {words};"
                assert layout in message and "resume on the same layout" in message


def load_on_more(workers: Workers, folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    model, optimizer, pace = start(workers, "sync", seed=7)
    pace.load(Path(folder, "sync"))
    return workloads.flat_state(model), averages_of(optimizer)


def test_one_worker_becomes_several(tmp_path: Path) -> None:
    saved = run_job(save_each, str(tmp_path), ["sync"], nodes=(1,))[0]["sync"]
    for parameters, averages in run_job(load_on_more, str(tmp_path), nodes=(2, 1)):
        assert torch.equal(parameters, saved[0])
        assert torch.equal(averages, saved[1])


def test_the_marker_says_what_was_saved(tmp_path: Path) -> None:
    run_job(save_each, str(tmp_path), ["daso"], nodes=(2, 1))
    marker = json.loads((tmp_path / "daso" / "save-000001" / "complete.json").read_text())
    assert marker["nodes"] == [[0, 1], [2]]
    assert marker["strategy"] == "Daso" and marker["options"]["late"] == "wait"
    assert marker["step"] == NUM_STEPS and marker["buffers"] == "mean"
    assert marker["torch"] == torch.__version__
    for messages in run_job(load_and_tell, str(tmp_path), ["daso"], nodes=(1,)):
        words = "on 2 nodes with 2 and 1 workers, and this job has 1 node with 1 worker;"
        assert words in messages["daso"]


def load_and_tell(workers: Workers, folder: str, cases: list[str]) -> dict[str, str]:
    model, _optimizer, pace = start(workers, "daso", seed=7)
    before, messages = workloads.flat_state(model), {}
    for case in cases:
        place = Path(folder, case)
        messages[case] = refused(partial(pace.load, place))
        if messages[case].startswith("there is no complete checkpoint"):
            pace.load(place, missing_ok=True)
        else:
            assert refused(partial(pace.load, place, missing_ok=True)) == messages[case]
        assert torch.equal(workloads.flat_state(model), before)
        assert pace.strategy.step == 0
    return messages


def load_the_older(workers: Workers, folder: str) -> tuple[int, list[str]]:
    _model, _optimizer, pace = start(workers, "daso", seed=7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pace.load(folder)
    return pace.strategy.step, [str(one.message) for one in caught]


def test_a_damaged_folder_is_named_by_all(tmp_path: Path) -> None:
    run_job(save_each, str(tmp_path), ["daso", "sync"])
    run_job(save_each, str(tmp_path / "again"), ["daso"])
    whole, other = tmp_path / "daso", tmp_path / "again" / "daso" / "save-000001"

    def copy(name: str) -> Path:
        return Path(shutil.copytree(whole, tmp_path / name), "save-000001")

    mixed = copy("mixed") / "worker-1"
    shutil.rmtree(mixed)
    shutil.copytree(other / "worker-1", mixed)
    shutil.copy(other / "complete.json", copy("other-marker") / "complete.json")
    shutil.rmtree(copy("missing") / "worker-3")
    damaged = copy("damaged") / "worker-2" / "__0_0.distcp"
    damaged.write_bytes(damaged.read_bytes()[:-500])
    (copy("interrupted") / "complete.json").unlink()
    (tmp_path / "empty").mkdir()
    future = copy("future") / "complete.json"
    future.write_text(json.dumps(json.loads(future.read_text()) | {"format": 7}))
    wrong = {
        "mixed": "mixed/save-000001/worker-1: it is of another save",
        "other-marker": "worker-0: it is of another save",
        "missing": "missing/save-000001/worker-3: No such file",
        "damaged": "damaged/save-000001/worker-2: it is damaged",
        "interrupted": "save-000001 was interrupted before every worker had written",
        "empty": "there is no complete checkpoint in ",
        "nothing": "there is no complete checkpoint in ",
        "future": "in format 7, and paceline",
        "sync": "the checkpoint holds Sync, and Daso is attached",
    }
    answers = run_job(load_and_tell, str(tmp_path), list(wrong))
    assert all(messages == answers[0] for messages in answers)
    for case, words in wrong.items():
        assert words in answers[0][case]
    assert answers[0]["mixed"].startswith("worker 1 on node 0 (")
    assert answers[0]["other-marker"].startswith("worker 0 on node 0 (")
    assert "(and 3 more)" in answers[0]["other-marker"]
    assert answers[0]["damaged"].startswith("worker 2 on node 1 (")

    # A complete save beside the damaged one is loaded, and that is said once.
    shutil.copytree(whole / "save-000001", tmp_path / "missing" / "save-000000")
    (step, told), *others = run_job(load_the_older, str(tmp_path / "missing"))
    assert step == NUM_STEPS and len(told) == 1
    assert "save-000000 is loaded" in told[0] and "worker-3: No such file" in told[0]
    assert others == [(NUM_STEPS, [])] * 3


def save_on_own_disks(workers: Workers, folder: str) -> tuple[int, list[str]]:
    """Nodes without a common disk; after the first node has lost its marker."""
    own = Path(folder, f"disk-{workers.node_index}")
    model, optimizer, pace = start(workers, "daso")
    for step in range(1, 4):
        train(workers, model, optimizer, range(step, step + 1))
        pace.save(own)
    saved = workloads.flat_state(model)
    if workers.world.rank == 0:
        (own / "save-000003" / "complete.json").unlink()
    train(workers, model, optimizer, range(4, 6))
    pace.load(own)
    assert torch.equal(workloads.flat_state(model), saved)
    step = pace.strategy.step
    pace.save(own)
    return step, sorted(str(path.relative_to(own)) for path in own.glob("*/*"))


def test_nodes_need_no_common_disk(tmp_path: Path) -> None:
    for rank, (step, names) in enumerate(run_job(save_on_own_disks, str(tmp_path))):
        first = rank // 2 * 2
        assert step == 3
        assert names == [
            f"save-000004/{name}"
            for name in ("complete.json", f"worker-{first}", f"worker-{first + 1}")
        ]


class Counting(Sync):
    """Its state is NumPy's; on the second worker it may hold what torch refuses to load."""

    bad: Any = None

    def start(self, replica: Replica, workers: Workers) -> None:
        super().start(replica, workers)
        self.counts: dict[str, Any] = {
            "mean": np.float32(0.25),
            np.str_("steps"): [np.int64(3), (np.True_, None)],
        }

    def state_dict(self) -> dict[str, Any]:
        is_bad = self.bad is not None and self.workers.world.rank == 1
        more = {"bad": self.bad} if is_bad else {}
        return {**super().state_dict(), "counts": self.counts, **more}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.counts = state["counts"]


class Failing(Sync):
    """Cannot be saved, on the second worker only."""

    def state_dict(self) -> dict[str, Any]:
        if self.workers.world.rank == 1:
            raise KeyError("lost")
        return super().state_dict()


class Refusing(Sync):
    """Cannot be loaded, on the second worker only."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.workers.world.rank == 1:
            raise RuntimeError("not\nthis one")
        super().load_state_dict(state)


def start_own(
    workers: Workers, strategy: Strategy, lr: Any
) -> tuple[torch.nn.Module, Optimizer, Pace]:
    model = workloads.build_model("plain")
    momentum: Any = np.float32(0.5)
    optimizer = SGD(model.parameters(), lr=lr, momentum=momentum)
    return model, optimizer, attach(model, optimizer, strategy, workers=workers)


def save_numbers_of_numpy(workers: Workers, folder: str) -> dict[str, str]:
    strategy = Counting()
    model, optimizer, pace = start_own(workers, strategy, np.float64(0.1))
    train(workers, model, optimizer, range(1, 3))
    pace.save(folder)
    saved = workloads.flat_state(model)
    train(workers, model, optimizer, range(3, 5))
    pace.load(folder)
    assert torch.equal(workloads.flat_state(model), saved)
    group = optimizer.param_groups[0]
    assert type(group["lr"]) is float and group["lr"] == 0.1
    assert type(group["momentum"]) is float and group["momentum"] == 0.5
    assert strategy.counts == {"mean": 0.25, "steps": [3, (True, None)]}
    assert type(strategy.counts["steps"][0]) is int

    messages = {}
    bad_values = {"decimal": Decimal(1), "array": {"of": [np.zeros(2)]}, "function": len}
    for name, value in bad_values.items():
        strategy.bad = value
        messages[name] = refused(partial(pace.save, folder))
    pace.load(folder)
    assert strategy.step == 2
    return messages


def test_numbers_of_numpy_are_saved_as_pythons(tmp_path: Path) -> None:
    answers = run_job(save_numbers_of_numpy, str(tmp_path), nodes=(1, 1))
    assert answers[0] == answers[1]
    for name, words in {
        "decimal": "strategy['bad'] is of type decimal.Decimal",
        "array": "strategy['bad']['of'][0] is of type numpy.ndarray",
        "function": "strategy['bad'] is of type builtins.builtin_function",
    }.items():
        assert answers[0][name].startswith("worker 1 on node 1 (")
        assert words in answers[0][name]


def fail_in_the_strategy(workers: Workers, folder: str) -> dict[str, str]:
    messages = {}
    _, optimizer, pace = start_own(workers, Sync(), 0.1)
    optimizer.param_groups[0]["limit"] = Decimal("0.1")
    messages["optimizer"] = refused(partial(pace.save, Path(folder, "optimizer")))
    _, _, pace = start_own(workers, Failing(), 0.1)
    messages["save"] = refused(partial(pace.save, Path(folder, "save")))
    model, optimizer, pace = start_own(workers, Refusing(), 0.1)
    pace.save(Path(folder, "load"))
    train(workers, model, optimizer, range(1, 2))
    trained = workloads.flat_state(model)
    messages["load"] = refused(partial(pace.load, Path(folder, "load")))
    # The strategy is asked first, so nobody's model has changed.
    assert torch.equal(workloads.flat_state(model), trained)
    return messages


def test_a_strategy_that_fails_on_one_worker_is_named_by_all(tmp_path: Path) -> None:
    answers = run_job(fail_in_the_strategy, str(tmp_path), nodes=(1, 1))
    assert answers[0] == answers[1]
    place = "optimizers[0]['param_groups'][0]['limit'] is of type decimal.Decimal"
    assert place in answers[0]["optimizer"]
    assert answers[0]["save"].startswith("worker 1 on node 1 (")
    assert answers[0]["save"].endswith("save-000001/worker-1: KeyError: 'lost'")
    assert answers[0]["load"].startswith("worker 1 on node 1 (")
    assert answers[0]["load"].endswith("save-000001/worker-1: RuntimeError: not this one")


@pytest.mark.parametrize(
    "value",
    [np.float16(0.5), np.longdouble(0.25), np.complex64(1 + 2j), np.bool_(True), np.bytes_(b"x")],
)
def test_every_scalar_of_numpy_has_a_python_value(value: np.generic, tmp_path: Path) -> None:
    torch.save(as_plain({"a": [value]}, key="state"), tmp_path / "file.pt")
    loaded = torch.load(tmp_path / "file.pt", weights_only=True)
    assert loaded == {"a": [value]}
    assert not isinstance(loaded["a"][0], np.generic)


def test_the_versions_of_a_models_modules_are_kept() -> None:
    state = workloads.build_model("normed").state_dict()
    metadata = vars(state)["_metadata"]
    assert metadata["1"]["version"] == 2
    assert vars(as_plain(state, key="model"))["_metadata"] == metadata


# With an exchange under way after three steps.
FRAGMENTED: dict[str, Any] = {"fragments": 2, "period": 4, "delay": 2}


def start_fragmented(
    workers: Workers,
    *,
    kind: str = "plain",
    optimizer_class: Callable[..., Optimizer] = SGD,
    num_groups: int = 1,
    **options: Any,
) -> tuple[torch.nn.Module, Pace]:
    model = workloads.build_model(kind, seed=3)
    parameters = list(model.parameters())
    groups = [{"params": parameters[i::num_groups]} for i in range(num_groups)]
    optimizer = optimizer_class(groups, lr=0.1)
    all_options = FRAGMENTED | options
    pace = attach(model, optimizer, "streaming-diloco", workers=workers, **all_options)
    train(workers, model, optimizer, range(3))
    return model, pace


def refuse_others(workers: Workers, folder: str) -> dict[str, str]:
    _, pace = start_fragmented(workers)
    pace.save(folder)
    assert pace.strategy.state_dict()["in_flight"]
    _, narrow = start_fragmented(workers, wire="bf16")
    narrow.save(f"{folder}-narrow")
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "fragments": ({"fragments": 1}, folder),
        "narrow": ({"wire": "int8"}, folder),
        "full": ({}, f"{folder}-narrow"),
        "names": ({"kind": "shared"}, folder),
        "more": ({"kind": "frozen"}, folder),
        "optimizer": ({"optimizer_class": AdamW}, folder),
        "groups": ({"num_groups": 2}, folder),
    }
    messages = {}
    for name, (changes, place) in cases.items():
        model, pace = start_fragmented(workers, **changes)
        before = workloads.flat_state(model)
        pace.strategy.step = 99
        messages[name] = refused(partial(pace.load, place))
        assert torch.equal(workloads.flat_state(model), before)
        assert pace.strategy.step == 99
        pace.detach()
    return messages


def test_what_is_attached_must_fit(tmp_path: Path) -> None:
    answers = run_job(refuse_others, str(tmp_path / "saved"), nodes=(1, 1))
    assert answers[0] == answers[1]
    words = {
        "fragments": "the checkpoint has 2 fragments, and 1 is attached",
        "narrow": "saved with wire='fp32'",
        "full": "saved with a narrow wire",
        "names": "of another model: it lacks first.bias and ",
        "more": "of another model: it lacks 4.bias and 1 more",
        "optimizer": "saved with SGD as optimizer, and this job has AdamW",
        "groups": "has groups of [4] parameters, and the attached one of [2, 2]",
    }
    for name, text in words.items():
        assert text in answers[0][name]
        assert answers[0][name].startswith("worker 0 on node 0 (")


def load_into_a_wider_model(workers: Workers, folder: str) -> list[str]:
    """With the state of the strategy alone as well: a model as a whole is not in it."""
    messages = []
    states = []
    for width in (4, 6):
        model, optimizer = workloads.build_drift(width)
        pace = attach(model, optimizer, "daso", workers=workers, warmup_steps=0, wire="int8")
        if width == 4:
            pace.save(folder)
        else:
            messages.append(refused(partial(pace.load, folder)))
        states.append(pace.state_dict())
    with pytest.raises(ValueError) as problem:
        pace.load_state_dict(states[0])
    return [*messages, str(problem.value)]


def test_a_wider_model_is_refused(tmp_path: Path) -> None:
    for whole, strategy in run_job(load_into_a_wider_model, str(tmp_path), nodes=(1, 1)):
        assert whole.endswith("another model: values has the shape (4,) there and (6,) here")
        assert strategy.endswith("its wires hold 4 values, and those of the attached model 6")


def take_over_an_exchange(workers: Workers) -> list[str]:
    """The state of a strategy with an exchange under way, where it does not fit."""
    paces = []
    for buffers in ("mean", "keep"):
        model, optimizer = workloads.build("normed", "adamw")
        options: dict[str, Any] = {"warmup_steps": 0, "period": 3, "delay": 3, "buffers": buffers}
        paces.append(attach(model, optimizer, "daso", workers=workers, **options))
        train(workers, model, optimizer, range(4))
    state = paces[0].state_dict()
    (exchange,) = state["state"]["in_flight"].values()
    messages = []
    for pace, healthy in ((paces[1], exchange["healthy"]), (paces[0], torch.ones(3))):
        exchange["healthy"] = healthy
        with pytest.raises(ValueError) as problem:
            pace.load_state_dict(state | {"state": state["state"] | {"step": 99}})
        messages.append(str(problem.value))
        assert pace.strategy.step == 4
    return messages


def test_an_exchange_under_way_must_fit() -> None:
    for buffers, nodes in run_job(take_over_an_exchange, nodes=(1, 1)):
        assert "another setting than buffers='keep'" in buffers
        assert nodes == "the checkpoint was saved on 3 nodes, and this job has 2"


def swap_idle_and_one_worker(workers: Workers, folder: str) -> list[str]:
    model, optimizer = workloads.build("plain", "momentum")
    idle = attach(model, optimizer, enabled=False)
    idle.save(Path(folder, "idle"))
    with attach(model, optimizer, "daso", workers=workers) as pace:
        pace.save(Path(folder, "daso"))
        return [
            refused(partial(pace.load, Path(folder, "idle"))),
            refused(partial(idle.load, Path(folder, "daso"))),
            refused(partial(idle.load, Path(folder, "nothing"))),
        ]


def test_idle_checkpoints_are_told_from_others(tmp_path: Path) -> None:
    ((of_idle, of_daso, nothing),) = run_job(swap_idle_and_one_worker, str(tmp_path), nodes=(1,))
    assert "saved with enabled=False" in of_idle and "Daso is attached" in of_idle
    assert "holds the state of Daso, and enabled=False" in of_daso
    assert nothing.startswith("there is no complete checkpoint in ")
