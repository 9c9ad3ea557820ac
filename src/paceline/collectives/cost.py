"""The seconds of one collective: plain data in, seconds out."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from paceline.cluster.collective import CollectiveKind, Library
from paceline.collectives import formulas, gloo, nccl
from paceline.collectives.topology import Numbers, Topology

Algorithm = Literal["auto", "ring", "tree", "hierarchical"]


def collective_s(
    kind: CollectiveKind,
    num_bytes: Numbers,
    topology: Topology,
    *,
    algorithm: Algorithm = "auto",
    library: Library = "nccl",
    call_s: Numbers = 0.0,
) -> Numbers:
    """Seconds from the moment the last worker calls until the result is everywhere.

    Args:
        kind: The collective; a point-to-point message crosses nodes if there are several.
        num_bytes: The whole tensor: what goes into an all-reduce or a reduce-scatter, what comes
            out of an all-gather.
        topology: Its workers and the links between them.
        algorithm: ``"auto"`` is the library's own choice by message size; the others are for
            all-reduces.
        library: ``"nccl"`` or ``"gloo"``.
        call_s: What each call costs before the first byte moves, on top of the library's model.
    """
    _check("kind", kind, get_args(CollectiveKind))
    _check("algorithm", algorithm, get_args(Algorithm))
    _check("library", library, get_args(Library))
    if algorithm != "auto" and kind != "all_reduce":
        raise ValueError(
            f"algorithm {algorithm!r} is for an all_reduce; leave it 'auto' for {kind!r}"
        )
    if kind == "point_to_point":
        place = topology.between_workers if library == "nccl" else topology
        seconds = formulas.message_s(num_bytes, gloo.ring_route(place))
    elif library == "nccl":
        seconds = _nccl_s(kind, num_bytes, topology, algorithm)
    else:
        seconds = _gloo_s(kind, num_bytes, topology, algorithm)
    # An index of nothing: numbers in, a number out, and not an array without dimensions.
    return np.where(np.equal(topology.num_workers, 1), 0.0, call_s + seconds)[()]


def _nccl_s(
    kind: CollectiveKind, num_bytes: Numbers, topology: Topology, algorithm: Algorithm
) -> Numbers:
    if kind == "broadcast":
        return nccl.broadcast_s(num_bytes, topology)
    if kind != "all_reduce":
        return nccl.reduce_scatter_s(num_bytes, topology)
    if algorithm == "ring":
        return nccl.all_reduce_s(num_bytes, topology, ("ring",))
    if algorithm == "tree":
        return nccl.all_reduce_s(num_bytes, topology, ("tree",))
    if algorithm == "hierarchical":
        return nccl.hierarchical_all_reduce_s(num_bytes, topology)
    return nccl.all_reduce_s(num_bytes, topology)


def _gloo_s(
    kind: CollectiveKind, num_bytes: Numbers, topology: Topology, algorithm: Algorithm
) -> Numbers:
    if kind == "broadcast":
        return gloo.broadcast_s(num_bytes, topology)
    if kind == "reduce_scatter":
        return gloo.reduce_scatter_s(num_bytes, topology)
    if kind == "all_gather":
        return gloo.all_gather_s(num_bytes, topology)
    if algorithm == "tree":
        raise ValueError("Gloo has no tree for an all_reduce; use 'auto', 'ring' or 'hierarchical'")
    if algorithm == "hierarchical":
        return gloo.hierarchical_all_reduce_s(num_bytes, topology)
    return gloo.all_reduce_s(num_bytes, topology)


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"there is no {name} {value!r}: known are {', '.join(known)}")
