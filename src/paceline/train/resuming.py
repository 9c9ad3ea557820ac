"""Resume a job from its newest complete save, on the same layout or on another one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.train import saves
from paceline.train.checkpoint import numbers_and_markers
from paceline.train.contents import Contents
from paceline.train.crew import CheckpointError, Crew
from paceline.train.resizing import Sources, find_sources, gather_state
from paceline.train.skeleton import put_together
from paceline.version import __version__


def load_checkpoint(
    folder: str | Path,
    contents: Contents,
    *,
    missing_ok: bool,
    average: bool,
    random_state: bool,
) -> dict[str, Any] | None:
    """Take over the newest complete save in ``folder``; the user's values, or None without one."""
    crew, target = Crew(contents.workers), Path(folder)
    seen = crew.share(lambda: list(saves.find_saves(target).items()), task=f"read {target}")
    numbers, markers = numbers_and_markers(seen)
    if not markers:
        if missing_ok:
            return None
        raise CheckpointError(
            f"there is no complete checkpoint in {target}: "
            + (
                f"{saves.save_path(target, max(numbers)).name} was interrupted before every "
                "worker had written its part"
                if numbers
                else "pace.save(folder) has not written any there"
            )
        )
    number, sources = _choose(target, markers, contents, crew, average=average)
    marker = markers[number]
    task = f"load {saves.save_path(target, number)}"
    state: dict[str, Any] = {}
    if sources is None:
        path = saves.part_path(target, number, crew.rank, layout=marker["format"])
        task = f"load {path}"

        def read() -> None:
            part = saves.read_part(path, expected=saves.expected_checksum(marker, crew.rank))
            state.update(put_together(*part, contents.device))
            contents.check(state)

        crew.share(read, task=task)
    else:
        state.update(gather_state(target, number, marker, sources, contents, crew))
        crew.share(lambda: contents.check(state), task=task)
    is_averaged = sources is not None and sources.is_average
    # The strategy first: it may still refuse, and then nobody's model has changed.
    crew.share(lambda: contents.load_strategy(state, is_averaged=is_averaged), task=task)
    crew.share(lambda: contents.load_registered(state), task=task)
    crew.share(lambda: contents.load_training(state), task=task)
    if random_state:
        crew.share(lambda: contents.load_random(state, is_own=sources is None), task=task)
    extra: dict[str, Any] = state.get("extra", {})
    return extra


def _choose(
    target: Path,
    markers: Mapping[int, Mapping[str, Any]],
    contents: Contents,
    crew: Crew,
    *,
    average: bool,
) -> tuple[int, Sources | None]:
    """The newest save that can be loaded, and whose parts become this job's.

    None stands for each worker's own.
    """
    problems: list[CheckpointError] = []
    for number in sorted(markers, reverse=True):
        marker = markers[number]
        _check_kind(marker, contents)
        visible = _visible_parts(target, number, marker, crew)
        is_same_layout = marker["nodes"] == crew.nodes
        are_all_here = is_same_layout and all(rank in own for rank, own in enumerate(visible))
        sources = None
        is_average = average and not contents.is_sharded
        if not are_all_here and (marker["differing"] is None or is_average):
            sources = find_sources(marker, visible, is_average=marker["differing"] is not None)
        elif not is_same_layout:
            raise CheckpointError(_refusal(marker, crew))
        elif absent := marker.get("absent"):
            raise CheckpointError(
                f"{saves.save_path(target, number)} was saved while the workers {absent} were "
                "lost: go on from the average of the others with pace.load(..., average=True)"
            )
        ranks = [crew.rank] if sources is None else sources.ranks_of(crew.rank)
        paths = [saves.part_path(target, number, r, layout=marker["format"]) for r in ranks]
        where = paths[0] if len(paths) == 1 else saves.save_path(target, number)
        try:
            crew.share(partial(_check_parts, paths, marker), task=f"load {where}")
        except CheckpointError as problem:
            problems.append(problem)
            continue
        if problems and crew.rank == 0:
            warnings.warn(
                f"{saves.save_path(target, number)} is loaded, because the save after it is not "
                f"complete: {problems[0]}",
                RuntimeWarning,
                stacklevel=4,
            )
        return number, sources
    raise problems[0]


def _visible_parts(
    target: Path, number: int, marker: Mapping[str, Any], crew: Crew
) -> list[list[int]]:
    """By worker of this job: the parts that it sees. What a lost worker left is none."""
    found = crew.share(
        partial(saves.find_parts, target, number), task=f"read {saves.save_path(target, number)}"
    )
    absent = marker.get("absent") or []
    return [[rank for rank in ranks or () if rank not in absent] for ranks in found]


def _check_parts(paths: Sequence[Path], marker: Mapping[str, Any]) -> None:
    for path in paths:
        saves.check_part(path, marker)


def _check_kind(marker: Mapping[str, Any], contents: Contents) -> None:
    """Refuse another format's or another strategy's checkpoint."""
    known = (saves.OLD_FORMAT, saves.FORMAT)
    if marker.get("format") not in known:
        raise CheckpointError(
            f"the checkpoint was written by paceline {marker.get('paceline')} in format "
            f"{marker.get('format')}, and paceline {__version__} reads formats "
            f"{' and '.join(map(str, known))}"
        )
    was_sharded = bool(marker.get("sharded"))
    if was_sharded != contents.is_sharded:
        kinds = ["a model that fully_shard has sharded", "a model that is whole on every worker"]
        saved_kind, own_kind = kinds if was_sharded else reversed(kinds)
        raise CheckpointError(f"the checkpoint is of {saved_kind}, and {own_kind} is attached")
    saved, own = marker["strategy"], contents.strategy_name
    if saved == own:
        return
    if own is None:
        raise CheckpointError(
            f"the checkpoint holds the state of {saved}, and enabled=False attaches no "
            f"strategy; resume it with {saved}"
        )
    if saved is None:
        raise CheckpointError(
            f"the checkpoint was saved with enabled=False and holds no strategy's state, and "
            f"{own} is attached; resume it with enabled=False"
        )
    raise CheckpointError(f"the checkpoint holds {saved}, and {own} is attached")


def _refusal(marker: Mapping[str, Any], crew: Crew) -> str:
    instead = ", or from their average with pace.load(..., average=True)"
    return (
        f"the checkpoint was saved on {_layout_in_words(marker['nodes'], crew.nodes)}, and this "
        f"job has {_layout_in_words(crew.nodes, marker['nodes'])}; under {marker['strategy']} its "
        f"workers had different {marker['differing']}: resume on the same layout"
        f"{'' if marker.get('sharded') else instead}"
    )


def _layout_in_words(nodes: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> str:
    sizes = [len(ranks) for ranks in nodes]
    count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    if sizes == [len(ranks) for ranks in other]:
        return f"{count} with the ranks {' and '.join(str(list(ranks)) for ranks in nodes)}"
    if len(set(sizes)) > 1:
        return f"{count} with {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} workers"
    plural = "s" if sizes[0] > 1 else ""
    return f"{count} with {sizes[0]} worker{plural}{' each' if len(nodes) > 1 else ''}"
