"""Messages from one worker to another: which send belongs to which receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.rehearse.program import Mail, Operation, Program
from paceline.teams.virtual import Beside, Message


@dataclass(frozen=True, slots=True)
class Lane:
    """Where messages follow one another: from one place in a node to another.

    Nodes that are alike do alike, so a message to another node's worker is taken for one of many:
    whoever sends it gets another such message from a third node.
    """

    node_kind: int | None
    """The kind of node in which the messages stay; None if they leave it."""
    source: int
    target: int


def lane_of(message: Message, *, node_kind: int, index: int) -> Lane:
    """The lane of a message of a worker that has this place in a node of this kind."""
    other = index + message.offset
    source, target = (index, other) if message.is_sent else (other, index)
    return Lane(None if message.is_outward else node_kind, source, target)


def count_mails(
    program: Program, *, node_kind: int, index: int
) -> Counter[tuple[bool, Lane, bool]]:
    """How many messages a program has: in the background or not, by lane, sent or received."""
    return Counter(
        (background, lane_of(message, node_kind=node_kind, index=index), message.is_sent)
        for step in program
        for background, message in _messages(step, background=False)
    )


def _messages(
    operations: Sequence[Operation], *, background: bool
) -> Iterator[tuple[bool, Message]]:
    for operation in operations:
        if isinstance(operation, Mail):
            yield background, operation.message
        elif isinstance(operation, Beside):
            yield from _messages(operation.events, background=True)
