"""Resume: workers killed at random steps, and nodes lost and taken back under torchrun.

    python benchmarks/resume.py
    python benchmarks/resume.py --device cuda
    python benchmarks/resume.py --elastic

The first kills one of 2 x 2 workers with SIGKILL, at a random step and a random place in it, 20
times during one training, and starts all workers again each time. The end is compared with that of
a run that nobody disturbed: parameters bit for bit, and which samples were trained on in every
epoch. The second runs ``examples/elastic.py`` under two of torchrun's agents, kills one agent with
all that it has started, and starts it again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic_agents
import paceline

STRATEGIES: dict[str, dict[str, Any]] = {
    "sync": {},
    "local-sgd": {"period": 4},
    "daso": {"period": 4, "delay": 3, "late": "wait", "warmup_steps": 4},
    "diloco": {"period": 4},
}
NODES = (2, 2)
PLACES = ("forward", "backward", "step", "any time", "save")
NUM_SAMPLES, BATCH, NUM_EPOCHS, SAVE_EVERY = 232, 24, 8, 4
NUM_STEPS = NUM_EPOCHS * -(-NUM_SAMPLES // BATCH)

Death = tuple[int, int, str]
"""A rank, a step and a place in it."""


def work(rank: int, port: int, name: str, folder: Path, death: Death | None, device: str) -> None:
    """One worker's life."""
    per_node = NODES[0]
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(sum(NODES)),
        "LOCAL_RANK": str(rank % per_node),
        "GROUP_RANK": str(rank // per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # or its products may differ from run to run
    }
    if death is not None:
        # All end by an error, of which one is enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    has_save = bool(list((folder / "checkpoints").glob("*/complete.json")))
    # Where there is a save, everything comes from it.
    torch.manual_seed(rank + (99 if has_save else 0))
    layers = (nn.Linear(7, 16), nn.Dropout(0.2), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)
    inputs = torch.randn(NUM_SAMPLES, 7, generator=torch.Generator().manual_seed(5))
    data = TensorDataset(torch.arange(NUM_SAMPLES), inputs)
    step = 0

    def die_at(place: str) -> None:
        if death == (rank, step, place):
            _die()

    with paceline.attach(model, optimizer, name, **STRATEGIES[name]) as pace:
        pace.register(scheduler=scheduler)
        loader = pace.loader(data, BATCH, shuffle=True, shares="equal")
        found = pace.load(folder / "checkpoints", missing_ok=True) or {"seen": {}}
        seen: dict[int, tuple[int, list[int]]] = dict(found["seen"])
        (folder / f"began-{rank}").write_text(str(pace.strategy.step))
        while loader.epoch < NUM_EPOCHS:
            for indices, batch in loader:
                step = pace.strategy.step + 1
                seen[step] = loader.epoch, indices.tolist()
                if death == (rank, step, "any time"):
                    threading.Timer(random.uniform(0.0, 0.05), _die).start()
                die_at("forward")
                optimizer.zero_grad()
                loss = model(batch.to(device)).square().mean()
                die_at("backward")
                loss.backward()
                die_at("step")
                optimizer.step()
                scheduler.step()
                if step % SAVE_EVERY == 0:
                    if death == (rank, step, "save"):
                        threading.Timer(random.uniform(0.0, 0.03), _die).start()
                    pace.save(folder / "checkpoints", extra={"seen": seen}, background=True)
    end = {"model": model.state_dict(), "seen": seen}
    torch.save(end, folder / f"end-{rank}.pt")
    os._exit(0)  # without the interpreter's shutdown


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_once(name: str, folder: Path, death: Death | None, device: str) -> list[int | None]:
    """One life of a job; how its workers ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "paceline.train", "paceline.train.storage"])
    ranks = range(sum(NODES))
    made = [
        context.Process(target=work, args=(rank, port, name, folder, death, device))
        for rank in ranks
    ]
    for process in made:
        process.start()
    deadline = time.monotonic() + 300.0
    waited = {process.sentinel for process in made}
    while waited and time.monotonic() < deadline:
        waited -= set(connection.wait(list(waited), deadline - time.monotonic()))
    for process in made:
        if process.exitcode is None:
            process.kill()
        process.join()
    return [process.exitcode for process in made]


def saved_step(folder: Path) -> int:
    """The step of the newest complete save: where the next life begins."""
    markers = (folder / "checkpoints").glob("*/complete.json")
    return max((int(json.loads(each.read_text())["step"]) for each in markers), default=0)


def kill_often(name: str, num_kills: int, chance: random.Random, device: str) -> dict[str, Any]:
    """Train once undisturbed and once with many deaths, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        whole.mkdir()
        killed.mkdir()
        assert run_once(name, whole, None, device) == [0] * sum(NODES)
        deaths: list[dict[str, Any]] = []
        for number in range(num_kills):
            began = deaths[-1]["resumed_at"] if deaths else 0
            # Later and later, so that deaths are spread over the training; never at a step that is
            # saved, which would not be taken again.
            first = max(1 + number * (NUM_STEPS - 1) // num_kills, saved_step(killed) + 1)
            step = chance.randrange(first, min(NUM_STEPS, first + 2 * SAVE_EVERY))
            place = chance.choice(PLACES[: 5 if step % SAVE_EVERY == 0 else 4])
            death = (chance.randrange(sum(NODES)), step, place)
            codes = run_once(name, killed, death, device)
            assert codes[death[0]] == -signal.SIGKILL, (death, codes)
            if deaths:
                deaths[-1]["resumed_at"] = int((killed / "began-0").read_text())
            deaths.append({"rank": death[0], "step": step, "place": place, "codes": codes})
            deaths[-1]["resumed_at"] = began  # at least
        assert run_once(name, killed, None, device) == [0] * sum(NODES)
        deaths[-1]["resumed_at"] = int((killed / "began-0").read_text())
        ends = [
            [
                torch.load(place / f"end-{rank}.pt", map_location="cpu", weights_only=True)
                for rank in range(sum(NODES))
            ]
            for place in (whole, killed)
        ]
    is_equal = all(
        torch.equal(value, other["model"][key])
        for one, other in zip(*ends, strict=True)
        for key, value in one["model"].items()
    )
    every = Counter((epoch, i) for epoch in range(NUM_EPOCHS) for i in range(NUM_SAMPLES))
    seen = Counter(
        (epoch, index)
        for end in ends[1]
        for epoch, indices in end["seen"].values()
        for index in indices
    )
    return {
        "strategy": name,
        "kills": len(deaths),
        "steps": NUM_STEPS,
        "bit_for_bit": is_equal,
        "every_sample_once": seen == every,
        "steps_repeated": sum(death["step"] - 1 - death["resumed_at"] for death in deaths),
        "places": dict(Counter(death["place"] for death in deaths)),
        "deaths": deaths,
    }


def main() -> int:
    """Print a table, or JSON; the exit status says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--kills", type=int, default=20, help="under each strategy")
    parser.add_argument("--seed", type=int, help="of steps, workers and places; by default random")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="all workers share one GPU"
    )
    parser.add_argument("--elastic", action="store_true", help="lose nodes under torchrun")
    parser.add_argument("--losses", type=int, default=3, help="of nodes, with --elastic")
    parser.add_argument("--epochs", type=int, default=150, help="of the training, with --elastic")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    rows = []
    for name in arguments.strategies:
        if arguments.elastic:
            row = elastic_agents.lose_nodes(name, arguments.losses, num_epochs=arguments.epochs)
            rows.append(row)
        else:
            rows.append(
                kill_often(name, arguments.kills, random.Random(f"{seed}/{name}"), arguments.device)
            )
        if not arguments.json:
            _print_row(rows[-1], is_first=len(rows) == 1)
    if arguments.json:
        print(json.dumps({"seed": seed, "rows": rows}, indent=2))
    claims = [value for row in rows for value in row.values() if isinstance(value, bool)]
    return 0 if all(claims) else 1


def _print_row(row: dict[str, Any], *, is_first: bool) -> None:
    shown = {name: value for name, value in row.items() if not isinstance(value, list | dict)}
    if is_first:
        print("  ".join(f"{name.replace('_', ' '):>17}" for name in shown))
    words = {True: "yes", False: "no"}
    cells = [words[value] if isinstance(value, bool) else str(value) for value in shown.values()]
    print("  ".join(f"{cell:>17}" for cell in cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
