"""How soon the explorer answers as its sliders move, and how far off its estimates are.

python benchmarks/explore_speed.py [MODEL --cluster NAME ...]
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import psutil
import torch

RESULT = Path(__file__).parent.parent / "docs" / "results" / "explore_speed.json"
BAR_S = 0.1
DEFAULT = ["resnet50", "--cluster", "dgx-h200", "--precision", "bf16", "--workers", "1:4096"]
SLIDERS = ("workers", "batch", "link", "arithmetic", "memory_bandwidth")
NUM_RANDOM = 100
NUM_ESTIMATED = 8
MOST_WAIT_S = 240


@dataclass
class Page:
    """Asks as the page does, over one connection, and takes the time."""

    url: str
    state: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._connection = HTTPConnection(urlsplit(self.url).netloc, timeout=MOST_WAIT_S)

    def ask(self, sliders: Mapping[str, int] | None = None) -> tuple[float, dict[str, Any]]:
        begun = time.perf_counter()
        self._connection.request("GET", f"/answer?{urlencode({**self.state, **(sliders or {})})}")
        reply = self._connection.getresponse()
        found = json.loads(reply.read())
        assert reply.status == 200, found
        return time.perf_counter() - begun, found

    def settle(self, sliders: Mapping[str, int] | None = None) -> dict[str, Any]:
        """The answer, when nothing in it is estimated any more."""
        end = time.monotonic() + MOST_WAIT_S
        while time.monotonic() < end:
            _, found = self.ask(sliders)
            if found.get("is_settled"):
                return found
            time.sleep(0.2)
        raise TimeoutError(f"not settled after {MOST_WAIT_S} s")


def drags(first: Mapping[str, Any]) -> Iterable[dict[str, int]]:
    """Each slider from one end to the other, the others as they are."""
    for name in SLIDERS:
        for place in range(len(first["scales"][name])):
            yield {**first["sliders"], name: place}


def timed(page: Page, places: Iterable[dict[str, int]]) -> dict[str, float]:
    times, exact = [], []
    for sliders in places:
        took_s, found = page.ask(sliders)
        times.append(took_s)
        exact.append(page.state["strategy"] not in found["estimated"])
        time.sleep(0.03)  # a hand moves a slider about so fast
    cuts = statistics.quantiles(times, n=100)
    return {
        "answers": len(times),
        "p50_s": cuts[49],
        "p95_s": cuts[94],
        "worst_s": max(times),
        "share_exact": statistics.mean(exact),
    }


def step_s(found: Mapping[str, Any], strategy: str) -> list[float]:
    """Seconds per sample along the curve of a strategy."""
    (curve,) = [
        trace
        for trace in found["figures"]["throughput"]["data"]
        if trace.get("name") == strategy and trace.get("fill") is None
    ]
    return [1 / value for value in curve["y"]]


def estimates(page: Page, first: Mapping[str, Any]) -> dict[str, float]:
    """Random places: what was estimated at first against what was answered in the end."""
    chance = random.Random(2)
    errors, waits = [], []
    for _ in range(NUM_ESTIMATED):
        sliders = {name: chance.randrange(len(first["scales"][name])) for name in SLIDERS}
        _, at_once = page.ask(sliders)
        begun = time.perf_counter()
        settled = page.settle(sliders)
        waits.append(time.perf_counter() - begun)
        for strategy in at_once["estimated"]:
            pairs = zip(step_s(at_once, strategy), step_s(settled, strategy), strict=True)
            errors += [abs(rough / exact - 1) for rough, exact in pairs]
    return {
        "mean_error": statistics.mean(errors),
        "p95_error": statistics.quantiles(errors, n=20)[-1],
        "exact_after_s": statistics.median(waits),
    }


def main() -> None:
    arguments = sys.argv[1:] or DEFAULT
    command = [sys.executable, "-m", "paceline", "explore", *arguments, "--no-browser", "--json"]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            start_s = time.perf_counter() - begun
            page = Page(url, {"cluster": arguments[arguments.index("--cluster") + 1]})
            page.state |= {"device": "", "strategy": "sync"}
            _, first = page.ask()
            found: dict[str, Any] = {
                "benchmark": "answers of the explorer",
                "command": " ".join(["paceline", "explore", *arguments]),
                "torch": torch.__version__,
                "start_s": start_s,
                "drags_while_preparing": timed(page, drags(first)),
            }
            page.settle(first["sliders"])
            found["all_strategies_after_s"] = time.perf_counter() - begun
            for strategy in ("sync", "daso"):
                page.state["strategy"] = strategy
                page.settle(first["sliders"])
                time.sleep(20 if strategy == "daso" else 8)  # neighbours are timed ahead
                found[f"drags_{strategy}"] = timed(page, drags(first))
                chance = random.Random(1)
                scales = first["scales"]
                anywhere = [
                    {name: chance.randrange(len(scales[name])) for name in SLIDERS}
                    for _ in range(NUM_RANDOM)
                ]
                found[f"anywhere_{strategy}"] = timed(page, anywhere)
            found["estimates"] = estimates(page, first)
            found["memory_bytes"] = psutil.Process(process.pid).memory_info().rss
        finally:
            process.send_signal(signal.SIGINT)
        found["exit_code"] = process.wait(30)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    if not sys.argv[1:]:
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    worst = max(part["p95_s"] for key, part in found.items() if key.startswith(("drags", "any")))
    sys.stdout.write(f"p95 {worst * 1e3:.0f} ms, bar {BAR_S * 1e3:.0f} ms\n")
    if worst > BAR_S:
        sys.exit(1)


if __name__ == "__main__":
    main()
