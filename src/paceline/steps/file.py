"""Captures as plain values, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paceline.steps.capture import Capture, GradientReady, StepMemory
from paceline.steps.kernel import Kernel
from paceline.steps.recorder import Call

FORMAT = "paceline-capture"
VERSION = 1


def capture_to_dict(capture: Capture) -> dict[str, Any]:
    """Plain values; every distinct kernel stands there once."""
    places = {kernel: index for index, kernel in enumerate(dict.fromkeys(capture.kernels()))}
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": capture.name,
        "batch": capture.batch,
        "precision": capture.precision,
        "num_parameters": capture.num_parameters,
        "num_modules": capture.num_modules,
        "num_nodes": capture.num_autograd_functions,
        "memory": asdict(capture.memory),
        "kernels": [kernel.to_parts() for kernel in places],
        "calls": [
            [c.op, c.phase, [places[k] for k in c.kernels], c.live_bytes, c.num_tensors]
            for c in capture.calls
        ],
        "gradients": [[g.parameter, g.num_bytes, g.after_call] for g in capture.gradients],
        "evaluations": capture.evaluations,
        "assumptions": capture.assumptions,
    }


def capture_from_dict(values: Any) -> Capture:
    """The capture that :func:`capture_to_dict` wrote."""
    header = values if isinstance(values, dict) else {}
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise ValueError(f"This is no capture of schema version {VERSION}; capture the step again.")
    try:
        return _capture(values)
    except (KeyError, TypeError, IndexError, AttributeError) as problem:
        raise ValueError(f"The capture is damaged ({problem!r}); capture the step again.") from None


def _capture(values: dict[str, Any]) -> Capture:
    kernels = [Kernel.from_parts(parts) for parts in values["kernels"]]
    return Capture(
        name=values["name"],
        batch=values["batch"],
        precision=values["precision"],
        calls=tuple(
            Call(op, phase, tuple(kernels[i] for i in places), live_bytes, num_tensors)
            for op, phase, places, live_bytes, num_tensors in values["calls"]
        ),
        gradients=tuple(GradientReady(*each) for each in values["gradients"]),
        memory=StepMemory(**values["memory"]),
        num_parameters=values["num_parameters"],
        num_modules=values["num_modules"],
        num_autograd_functions=values["num_nodes"],
        evaluations=tuple(values.get("evaluations", ())),
        assumptions=tuple(map(str, values.get("assumptions", ()))),
    )
