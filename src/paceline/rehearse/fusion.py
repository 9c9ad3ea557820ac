"""Which parts of a step a compiler puts into one kernel, and what that kernel moves.

After Inductor's rules (torch/_inductor: ``ir.py``, ``scheduler.py``, ``config.py``): a pointwise
result is computed again in every kernel that reads it, unless a library's kernel needs it in memory
or it would take more than four reads; then loops over the same elements that share data are fused,
as long as no loop waits for another one through a kernel outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from paceline.rehearse.parts import Part, Read, Value

_MOST_READS = 4  # Inductor's realize_reads_threshold


@dataclass(eq=False, slots=True)
class Group:
    """What becomes one kernel, or a library's kernels."""

    parts: list[Part]
    needs: set[int] = field(default_factory=set)
    """Places of the groups whose results it reads."""
    row: int = 0

    @property
    def is_library(self) -> bool:
        """Whether its kernels are a library's."""
        return self.parts[0].kind == "library"

    @property
    def last_call(self) -> int:
        """The place of its last call in the capture."""
        return max(part.call for part in self.parts)


def fuse(parts: Sequence[Part]) -> list[Group]:
    """Put parts into groups, each of which is one kernel or a library's call."""
    groups: list[Group] = []
    made_by: dict[Value, int] = {}
    read_by: dict[Value, list[int]] = defaultdict(list)
    for part in _materialised(parts):
        needs = {made_by[read.value] for read in part.reads if read.value in made_by}
        place = _place_for(part, needs, groups, read_by)
        if place is None:
            place = len(groups)
            groups.append(Group([]))
        group = groups[place]
        group.parts.append(part)
        group.needs |= needs - {place}
        group.row = group.row or part.row
        made_by.update(dict.fromkeys(part.writes, place))
        for read in part.reads:
            if place not in read_by[read.value]:
                read_by[read.value].append(place)
    return groups


def moved_bytes(groups: Sequence[Group]) -> list[tuple[list[int], list[int]]]:
    """The bytes of each value that a group reads from memory, and of each that it writes."""
    readers: dict[Value, set[int]] = defaultdict(set)
    for place, group in enumerate(groups):
        for part in group.parts:
            for read in part.reads:
                readers[read.value].add(place)
    found = []
    for place, group in enumerate(groups):
        own: dict[Value, int] = {}
        for part in group.parts:
            own.update(part.writes)
        outside: dict[Value, dict[tuple[int, int], int]] = defaultdict(dict)
        for part in group.parts:
            for read in part.reads:
                if read.value not in own:
                    outside[read.value][read.offset, read.num_bytes] = read.num_bytes
        written = [
            size for value, size in own.items() if readers[value] - {place} or not readers[value]
        ]
        found.append(([sum(each.values()) for each in outside.values()], written))
    return found


def _materialised(parts: Sequence[Part]) -> list[Part]:
    """The parts whose results stand in memory; what is read of others is read of their sources."""
    readers: dict[Value, list[Part]] = defaultdict(list)
    for part in parts:
        for read in part.reads:
            readers[read.value].append(part)
    sources: dict[Value, tuple[Read, ...]] = {}
    saved: set[Value] = set()
    found = []
    for part in parts:
        if part.kind == "library":
            found.append(part)
            continue
        reads = _expanded(part.reads, sources)
        part = replace(part, reads=reads)
        if part.kind != "pointwise":
            found.append(part)
            continue
        kept = {}
        for value, size in part.writes.items():
            own = () if value in part.random else reads
            if _is_needed(part, value, size, own, readers[value], saved):
                kept[value] = size
            else:
                sources[value] = own
                if any(each.phase != part.phase for each in readers[value]):
                    saved.update(read.value for read in own)
        if kept:
            found.append(replace(part, writes=kept))
    return found


def _expanded(reads: Iterable[Read], sources: dict[Value, tuple[Read, ...]]) -> tuple[Read, ...]:
    flat: dict[Read, None] = {}
    for read in reads:
        flat.update(dict.fromkeys(sources.get(read.value, (read,))))
    return tuple(flat)


def _is_needed(
    part: Part,
    value: Value,
    size: int,
    sources: Sequence[Read],
    readers: Sequence[Part],
    saved: set[Value],
) -> bool:
    """Whether a pointwise result has to stand in memory."""
    if not readers or any(each.kind == "library" for each in readers):
        return True
    if len(sources) > _MOST_READS and len(readers) > 1:
        return True
    if all(each.phase == part.phase for each in readers):
        return False
    # What the backward pass needs is saved where that is cheaper than saving what it is made from.
    # A result that would otherwise never be in memory counts twice: it is written, then read
    # (torch/_functorch/partitioners.py, ``get_node_weight``).
    new = sum(read.num_bytes for read in sources if read.value not in saved)
    return new > 2 * size


def _place_for(
    part: Part, needs: set[int], groups: Sequence[Group], read_by: dict[Value, list[int]]
) -> int | None:
    """The group that shares most with a part and may take it."""
    if part.kind == "library":
        return None
    shared: dict[int, int] = defaultdict(int)
    for read in part.reads:
        for place in read_by[read.value]:
            shared[place] += read.num_bytes
    for place in needs:
        made = groups[place].parts
        shared[place] += sum(
            read.num_bytes for read in part.reads if any(read.value in each.writes for each in made)
        )
    for place in sorted(shared, key=lambda each: (-shared[each], -each)):
        if _fits(part, groups[place]) and not _waits(place, needs, groups):
            return place
    return None


def _fits(part: Part, group: Group) -> bool:
    first = group.parts[0]
    if group.is_library or first.size != part.size or first.phase != part.phase:
        return False
    if part.row and group.row and part.row != group.row:
        return False
    columns = [each for each in group.parts if each.kind == "column"]
    if any(read.value in each.writes for each in columns for read in part.reads):
        return False  # such a sum is complete only when its kernel is
    if group.row:
        return True
    # Sums over columns run in another order than plain loops: together only with each other.
    return (part.kind == "column") == bool(columns)


def _waits(place: int, needs: set[int], groups: Sequence[Group]) -> bool:
    """Whether something that is needed waits for the group itself."""
    waiting, seen = [each for each in needs if each != place], set(needs)
    while waiting:
        for each in groups[waiting.pop()].needs:
            if each == place:
                return True
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return False
