"""What two source trees differ in: predictions to the last digit, trained models bit for bit.

    python benchmarks/before_after.py BEFORE AFTER [LATER ...]

Each is a folder with a ``src``, or a git revision, and is compared with the one before it. Trees
run in processes of their own, by the public API alone, and only what both know is compared: models,
clusters and strategies by their names, the figures of a prediction by theirs. Each tree trains
twice, which tells what changes from run to run.

Strategies that let a late exchange arrive when it does are told to wait for it. A tree whose
strategies have no ``weighting`` counts nodes alike; its models are compared under "nodes alike".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
MODELS = ("small-cnn", "resnet50", "small-gpt")
CLUSTERS = ("dgx-h200", "dgx-a100", "ethernet-10g", "mixed", "lab-2x2")
PRECISIONS = ("fp32", "bf16")
STRATEGIES = (
    *("sync", "sync-hierarchical", "local-sgd", "post-local-sgd", "diloco"),
    *("streaming-diloco", "daso", "slowmo", "co2", "gossip", "demo"),
)
LAYOUTS = ((2, 2), (2, 1))
# Short enough for many exchanges in few steps.
NUM_STEPS = 24
OPTIONS: dict[str, dict[str, Any]] = {
    "local-sgd": {"period": 3},
    "post-local-sgd": {"period": 3},
    "diloco": {"period": 4},
    "streaming-diloco": {"period": 4, "fragments": 2, "delay": 1},
    "daso": {"late": "wait", "total_steps": NUM_STEPS},
    "slowmo": {"period": 4},
    "co2": {"period": 4},
    "gossip": {"period": 2},
    "demo": {"period": 2},
}
# Words for people, and what a later tree adds to them.
PROSE = ("warnings", "notes")


def record_predictions() -> dict[str, Any]:
    """The figures of all predictions of the tree that this process imports, by what was asked."""
    import paceline

    found: dict[str, Any] = {}
    for model in MODELS:
        for precision in PRECISIONS:
            step = paceline.load_step(model, precision=precision)  # type: ignore[arg-type]
            for cluster in CLUSTERS:
                for strategy in STRATEGIES:
                    try:
                        prediction = paceline.predict(step, cluster=cluster, strategy=strategy)
                    except ValueError as error:
                        figures: Any = f"ValueError: {error}"
                    else:
                        figures = {k: v for k, v in _flat(prediction.to_dict()) if k not in PROSE}
                    found[f"{model}, {precision}, {cluster}, {strategy}"] = figures
    return found


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def record_models() -> dict[str, Any]:
    """The trained models of a first and a second run."""
    return {"once": _trained_models(), "again": _trained_models()}


def _trained_models() -> dict[str, Any]:
    """The hashes of all workers' trained parameters and buffers, by layout and strategy."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, Any] = {}
    for layout in LAYOUTS:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        answers = context.Queue()
        places = [(node, local) for node, size in enumerate(layout) for local in range(size)]
        workers = [
            context.Process(target=_train_all, args=(layout, rank, node, local, port, answers))
            for rank, (node, local) in enumerate(places)
        ]
        for worker in workers:
            worker.start()
        for _ in workers:
            rank, hashes = answers.get(timeout=600)
            for key, value in hashes.items():
                of_layout = f"{'+'.join(map(str, layout))}, {key}"
                found.setdefault(of_layout, {})[f"worker {rank}"] = value
        for worker in workers:
            worker.join()
    return found


def _train_all(
    layout: Sequence[int], rank: int, node: int, local: int, port: int, answers: Any
) -> None:
    """Train a small model under every strategy of the tree, as one worker of a torchrun job."""
    import torch
    import torch.distributed as dist

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(node),
        "WORLD_SIZE": str(sum(layout)),
        "LOCAL_WORLD_SIZE": str(layout[node]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    hashes = {}
    for strategy in STRATEGIES:
        for alike in (False, True):
            for name in ("sgd", "adamw"):
                key = f"{strategy}, {name}{', nodes alike' if alike else ''}"
                hashes[key] = _train(strategy, name, rank, alike=alike)
    answers.put((rank, {key: value for key, value in hashes.items() if value}))
    dist.barrier()
    dist.destroy_process_group()


def _train(strategy: str, optimizer_name: str, rank: int, *, alike: bool) -> str | None:
    """The hash of a trained model; None for a strategy that the tree does not have."""
    import torch

    import paceline

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(24, 65, bias=False),
        torch.nn.BatchNorm1d(65),
        torch.nn.Tanh(),
        torch.nn.Linear(65, 4200),  # its gradients fill a bucket of their own
        torch.nn.Tanh(),
        torch.nn.Linear(4200, 10),
    )
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if optimizer_name == "sgd"
        else torch.optim.AdamW(model.parameters(), lr=0.003)
    )
    options = dict(OPTIONS.get(strategy, {}))
    # A tree that has no such option says so, and counts nodes alike anyway.
    attempts = [{**options, "weighting": "nodes"}, options] if alike else [options]
    for attempt in attempts:
        try:
            pace = paceline.attach(model, optimizer, strategy, **attempt)
            break
        except (ValueError, TypeError):
            continue
    else:
        return None
    data = torch.Generator().manual_seed(100 + rank)
    for _ in range(NUM_STEPS):
        inputs = torch.randn(16, 24, generator=data) + 0.1 * rank
        labels = torch.randint(10, (16,), generator=data)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        torch.autograd.backward(loss)
        optimizer.step()
    pace.finish()
    pace.detach()
    content = hashlib.sha256()
    for tensor in model.state_dict().values():
        content.update(tensor.contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


RECORDERS = {"predictions": record_predictions, "models": record_models}


def record(tree: Path, what: str) -> dict[str, Any]:
    """What the tree gives, from a process that imports nothing but this tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        command = [sys.executable, __file__, "--record", what, "--out", str(out)]
        subprocess.run(command, env=environment, cwd=folder, check=True)
        answer: dict[str, Any] = json.loads(out.read_text())
    assert Path(answer["source"]).is_relative_to(tree), f"{answer['source']} is not of {tree}"
    found: dict[str, Any] = answer["found"]
    return found


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every figure that both have and that differs, as [before, after], by what was asked."""
    changed = {}
    for key in before.keys() & after.keys():
        one, other = before[key], after[key]
        if isinstance(one, str) or isinstance(other, str):
            # What one tree refuses and the other predicts is a difference, two wordings are not.
            pairs = {} if type(one) is type(other) else {"answer": [one, other]}
        else:
            shared = one.keys() & other.keys()
            pairs = {name: [one[name], other[name]] for name in shared if one[name] != other[name]}
        if pairs:
            changed[key] = pairs
    return changed


def print_predictions(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """How many predictions are the same, and the range of changes of the others, by cluster."""
    changed = compare(before, after)
    num_shared = len(before.keys() & after.keys())
    print(f"\npredictions: {num_shared - len(changed)} of {num_shared} are the same to the digit")
    steps: dict[tuple[str, str], list[float]] = defaultdict(list)
    figures: dict[str, list[str]] = defaultdict(list)
    for key, pairs in changed.items():
        _, _, cluster, strategy = key.split(", ")
        for name, (one, other) in pairs.items():
            figures[name].append(f"{key}: {one} -> {other}")
            if name == "step_s":
                steps[cluster, strategy].append(other / one - 1)
    for name, examples in sorted(figures.items()):
        print(f"  {name} differs in {len(examples)}, as in {examples[0]}")
    for (cluster, strategy), changes in sorted(steps.items()):
        span = f"{min(changes):+.3%} to {max(changes):+.3%}"
        print(f"  step_s, {cluster}, {strategy}: {len(changes)} differ, by {span}")


def print_models(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Which strategies train another model than before, and which never train the same twice."""
    changed = compare(before["once"], after["once"])
    unstable = compare(before["once"], before["again"]) | compare(after["once"], after["again"])
    num_shared = len(before["once"].keys() & after["once"].keys())
    print(f"\ntrained models: {num_shared - len(changed)} of {num_shared} are the same to the bit")
    for key in sorted(changed):
        note = "differs from run to run" if key in unstable else "another model"
        equal = [len(set(tree["once"][key].values())) == 1 for tree in (before, after)]
        print(f"  {key}: {note}; workers end equal before: {equal[0]}, after: {equal[1]}")


PRINTERS = {"predictions": print_predictions, "models": print_models}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="*", metavar="TREE")
    parser.add_argument("--what", choices=[*RECORDERS, "both"], default="both")
    parser.add_argument("--out", type=Path, help="All that was recorded, as JSON.")
    parser.add_argument("--record", choices=RECORDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        import paceline

        found = RECORDERS[arguments.record]()
        arguments.out.write_text(json.dumps({"source": paceline.__file__, "found": found}))
        return
    if len(arguments.trees) < 2:
        parser.error("give at least two trees")
    chosen = [*RECORDERS] if arguments.what == "both" else [arguments.what]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.trees:
            tree = _unpack(name, Path(folder))
            found[name] = {what: record(tree, what) for what in chosen}
    for before, after in pairwise(arguments.trees):
        print(f"\n{before} -> {after}")
        for what in chosen:
            PRINTERS[what](found[before][what], found[after][what])
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def _unpack(tree: str, folder: Path) -> Path:
    """A folder as it is; a revision, unpacked."""
    if Path(tree, "src", "paceline").is_dir():
        return Path(tree).resolve()
    target = folder / tree.replace("/", "-")
    target.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(HERE), "archive", tree, "src"], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(target)], check=True, input=archive.stdout)
    return target.resolve()


if __name__ == "__main__":
    main()
