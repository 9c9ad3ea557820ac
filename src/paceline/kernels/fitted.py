"""A fitted model: an ensemble for each kernel family, the host's costs, and their file.

The file is safetensors: weights as tensors, everything else as JSON in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from paceline.cluster.device import Device
from paceline.kernels.family import FAMILIES, FamilyName
from paceline.kernels.host import HostCosts
from paceline.kernels.mlp import Ensemble
from paceline.reading import parse_json

FORMAT = "paceline-kernel-model"
VERSION = 6  # others knew less of convolutions, recurrent layers, pointwise kernels or softmaxes
SUFFIX = ".model.safetensors"
_WORKSPACE = "workspace."  # before the names of families whose workspaces are learned
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """What `paceline fit` makes of a profile."""

    device: Device
    ensembles: dict[FamilyName, Ensemble]
    host: HostCosts
    workspaces: dict[FamilyName, Ensemble] = field(default_factory=dict)
    """What kernels need besides their operands, as a share of their bytes."""
    gap_s: float = 0.0
    """How long a GPU rests between the kernels of two calls, and does not when one is repeated."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The profile's facts: machine, software versions."""

    def save(self, path: Path) -> None:
        """Write the model."""
        from safetensors.torch import save_file

        tensors, families = ensembles_to_parts(self.ensembles)
        spaces, spacious = ensembles_to_parts(
            {_WORKSPACE + name: each for name, each in self.workspaces.items()}
        )
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "device": json.dumps(self.device.model_dump(mode="json")),
            "families": json.dumps(families),
            "workspaces": json.dumps(spacious),
            "host": json.dumps(self.host.to_dict()),
            "gap_s": json.dumps(self.gap_s),
            "facts": json.dumps(self.facts),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors | spaces, path, metadata)


def load_model(path: Path | str) -> FittedModel:
    """Read a fitted model; ValueError with a sentence if it is not one, or is damaged."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no fitted model {path}; make one with `paceline fit PROFILE`.")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(
            f"The fitted model {path} has more than {_MOST_BYTES >> 20} MiB, and is not read."
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check(path, metadata)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as problem:
        raise ValueError(
            f"The fitted model {path} is cut off or is no safetensors file; run `paceline fit` "
            "again."
        ) from problem
    try:
        return _model(metadata, tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ValueError(
            f"The fitted model {path} is damaged ({str(problem)[:200]}); run `paceline fit` again."
        ) from problem


def _model(metadata: dict[str, str], tensors: dict[str, Tensor]) -> FittedModel:
    families, facts = parse_json(metadata["families"]), parse_json(metadata["facts"])
    spacious = parse_json(metadata["workspaces"])
    gap_s = float(metadata["gap_s"])
    if not isinstance(facts, dict) or not 0 <= gap_s < 1:
        raise ValueError("its facts are none")
    for name in {*families, *(each.removeprefix(_WORKSPACE) for each in spacious)} - set(FAMILIES):
        raise ValueError(f"there is no kernel family {name!r}")
    return FittedModel(
        device=Device(**parse_json(metadata["device"])),
        ensembles={
            cast(FamilyName, name): ensemble_from_parts(name, own, tensors)
            for name, own in families.items()
        },
        workspaces={
            cast(FamilyName, name.removeprefix(_WORKSPACE)): ensemble_from_parts(name, own, tensors)
            for name, own in spacious.items()
        },
        host=HostCosts.from_dict(parse_json(metadata["host"])),
        gap_s=gap_s,
        facts=facts,
    )


def _check(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a kernel model of paceline; make one with `paceline fit`.")
    if metadata.get("version") != str(VERSION):
        raise ValueError(
            f"The fitted model {path} has schema version {metadata.get('version')}, this paceline "
            f"reads {VERSION}; run `paceline fit` again."
        )


def ensembles_to_parts(
    ensembles: Mapping[Any, Ensemble],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Named ensembles as tensors for a file, and what else there is to know of each."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for name, ensemble in ensembles.items():
        for part in ("mean", "scale", "low", "high"):
            tensors[f"{name}.{part}"] = getattr(ensemble, part).contiguous()
        for layer, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
            # Half the file: weights of this size do not need float32's digits.
            tensors[f"{name}.weight{layer}"] = weight.half().contiguous()
            tensors[f"{name}.bias{layer}"] = bias.contiguous()
        facts[name] = {
            "ops": ensemble.ops,
            "residual": ensemble.residual,
            "skew": ensemble.skew,
        }
    return tensors, facts


def ensemble_from_parts(
    name: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Ensemble:
    """One ensemble of :func:`ensembles_to_parts`; ValueError or KeyError if it is none."""
    layers = sum(key.startswith(f"{name}.weight") for key in tensors)
    made = Ensemble(
        ops=tuple(facts["ops"]),
        mean=tensors[f"{name}.mean"],
        scale=tensors[f"{name}.scale"],
        low=tensors[f"{name}.low"],
        high=tensors[f"{name}.high"],
        weights=tuple(
            tensors[f"{name}.weight{layer}"].to(torch.float32) for layer in range(layers)
        ),
        biases=tuple(tensors[f"{name}.bias{layer}"] for layer in range(layers)),
        residual=float(facts["residual"]),
        skew=float(facts.get("skew", 0.0)),
    )
    made.check()
    return made
