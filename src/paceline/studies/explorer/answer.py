"""What the explorer tells its page: numbers, sentences and figures for one state of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from paceline.cluster.units import format_bandwidth
from paceline.studies.axes import AXES, Axes, AxisName
from paceline.studies.crossings import EFFICIENT, first_for_good
from paceline.studies.doubt import doubt_of_step, efficiency_range
from paceline.studies.explorer.figures import Curve, figures_of
from paceline.studies.explorer.question import Question, Sliders
from paceline.studies.explorer.scene import Scene, Slab
from paceline.studies.explorer.tested import tested_error
from paceline.studies.words import digits, duration, joined, size


def waiting_answer(question: Question, problem: str | None) -> dict[str, Any]:
    """While nothing of a cluster and a device is known; or why nothing ever will be."""
    what = f"{question.cluster}{f' with {question.device}' if question.device else ''}"
    return {
        "state": "failed" if problem else "preparing",
        "status": f"{what}: {problem}" if problem else f"Preparing {what} …",
    }


def answer_of(
    scene: Scene, question: Question, sliders: Sliders, strategies: Sequence[str]
) -> dict[str, Any]:
    """Everything that the page shows.

    Args:
        scene: The cluster with the device.
        question: The state of the page.
        sliders: Where the sliders are.
        strategies: What the page switches between.
    """
    curves = {name: _curve(scene, name, sliders) for name in strategies}
    known = {name: curve for name, curve in curves.items() if curve is not None}
    chosen = known.get(question.strategy)
    gains = scene.gains(question.strategy, sliders)
    waits = [name for name in strategies if name not in known and name not in scene.left_out]
    rough = [name for name, curve in known.items() if not curve.is_exact]
    return {
        "state": "ready",
        "status": _status(waits, rough, scene.left_out),
        "estimated": rough,
        "is_settled": not waits and not rough and (chosen is None or gains is not None),
        "sliders": asdict(sliders),
        "scales": _scales(scene.axes),
        "device": scene.kernel_model.device.name,
        "numbers": [] if chosen is None else _numbers(scene, chosen, sliders, gains),
        "sentences": [] if chosen is None else [_reach(question.strategy, chosen)],
        "tested": tested_error(scene.kernel_model, scene.cluster),
        "figures": figures_of(known, question.strategy, sliders.workers, gains),
    }


def _curve(scene: Scene, strategy: str, sliders: Sliders) -> Curve | None:
    slab = Slab(strategy, sliders.batch, sliders.arithmetic, sliders.memory_bandwidth)
    found = scene.times(slab, sliders.link)
    if found is None:
        return None
    workers = np.array(scene.axes.workers)
    exposed_s = np.maximum(found.step_s - found.alone_s, 0.0)
    doubts = scene.doubts(sliders.batch)
    uncertainty = doubt_of_step(exposed_s / found.step_s, **doubts)
    efficiency = np.minimum(found.alone_s / found.step_s, 1.0)
    least, most = efficiency_range(efficiency, exposed_s / found.step_s, **doubts)
    return Curve(
        workers=workers,
        step_s=found.step_s,
        low_s=found.step_s * np.maximum(1 - uncertainty, 0.0),
        high_s=found.step_s * (1 + uncertainty),
        exposed_s=exposed_s,
        throughput_per_s=workers * scene.axes.batch[sliders.batch] / found.step_s,
        efficiency=efficiency,
        efficiency_low=least,
        efficiency_high=most,
        is_exact=found.is_exact,
    )


def _numbers(
    scene: Scene, curve: Curve, sliders: Sliders, gains: Any
) -> list[tuple[str, str, str]]:
    """The figures of the chosen point: name, value, and what stands small beside it."""
    at = sliders.workers
    step_s, low_s, high_s = (float(each[at]) for each in (curve.step_s, curve.low_s, curve.high_s))
    samples = float(curve.throughput_per_s[at]) * step_s
    found = [
        ("time per step", duration(step_s), f"{duration(low_s)} to {duration(high_s)}"),
        (
            "samples per second",
            digits(samples / step_s),
            f"{digits(samples / high_s)} to {digits(samples / max(low_s, step_s / 10))}",
        ),
        (
            "efficiency",
            f"{curve.efficiency[at]:.0%}",
            f"{curve.efficiency_low[at]:.0%} to {curve.efficiency_high[at]:.0%}",
        ),
        ("limited by", max(gains, key=lambda name: gains[name]) if gains else "…", _best(gains)),
        ("memory", *_memory(scene, sliders.batch)),
    ]
    price = scene.cluster.node_kinds[0].price_per_hour
    if price is not None:
        per_node = scene.cluster.node_kinds[0].workers_per_node
        nodes = max(1, scene.axes.workers[at] // per_node)
        dollars = nodes * price / 3600 / (samples / step_s) * 1e6
        found.append(("cost", f"${digits(dollars)}", "per million samples"))
    return found


def _best(gains: Any) -> str:
    return f"10% more of it saves {max(gains.values()):.1%}" if gains else "being timed"


def _memory(scene: Scene, batch: int) -> tuple[str, str]:
    needed, there = scene.memory_bytes(batch), scene.kernel_model.device.memory_bytes
    if needed is None:
        return "…", "being captured"
    return size(needed), f"{'fits into' if needed <= there else 'does not fit into'} {size(there)}"


def _reach(strategy: str, curve: Curve) -> str:
    fallen = first_for_good(curve.efficiency < EFFICIENT)
    most = int(curve.workers[-1])
    if fallen is None:
        return f"{strategy} keeps {EFFICIENT:.0%} efficiency up to {most:,} workers."
    if fallen == 0:
        return f"{strategy} is below {EFFICIENT:.0%} efficiency from the start."
    reach = int(curve.workers[fallen - 1])
    return f"{strategy} keeps {EFFICIENT:.0%} efficiency up to {reach:,} workers."


def _status(waits: Sequence[str], rough: Sequence[str], left_out: dict[str, str]) -> str:
    texts = [f"{name} is left out: {why}" for name, why in left_out.items()]
    if waits:
        texts.append(f"Preparing {joined(waits)} …")
    if rough:
        texts.append(f"{joined(rough)}: estimated, exact in a moment.")
    return " ".join(texts)


def _scales(axes: Axes) -> dict[str, list[str]]:
    return {name: [_label(name, value) for value in axes.values(name)] for name in AXES}


def _label(name: AxisName, value: float) -> str:
    if name == "link":
        return format_bandwidth(float(f"{8 * value:.3g}") / 8, bits=True)
    if name in ("workers", "batch"):
        return f"{value:,.0f}"
    return f"× {value:.3g}"
