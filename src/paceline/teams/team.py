"""What a team of workers can do, whatever carries it.

Training algorithms are written against these two classes alone. A team on ``torch.distributed``
trains; a virtual team tells what the same program would cost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, get_args

import torch

Op = Literal["sum", "mean", "max", "min"]
OPS: tuple[Op, ...] = get_args(Op)


class TeamError(RuntimeError):
    """Workers cannot go on together: one died, one did not come, or they wait for each other."""


def check_op(op: str, dtype: torch.dtype = torch.float64) -> None:
    """Refuse a way to combine numbers that no team knows, or that their type does not have."""
    if op not in OPS:
        raise ValueError(f"op={op!r} is not known; use 'sum', 'mean', 'max' or 'min'")
    if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"whole numbers ({dtype}) have no mean; sum them, or use floating point")
    if op in ("max", "min") and dtype.is_complex:
        raise ValueError(f"complex numbers ({dtype}) have no {op}")


def check_rank(rank: int, size: int) -> None:
    """Refuse a rank that no member of a team of this size has."""
    if not 0 <= rank < size:
        raise ValueError(f"a team of {size} has no member {rank}; its ranks are 0 to {size - 1}")


def told_how(tensor: torch.Tensor, *words: str) -> str:
    """What all members must have in common in an operation, as text: ``"sum, float32"``."""
    return ", ".join([*words, str(tensor.dtype).removeprefix("torch.")])


class Pending(ABC):
    """Something under way: a result that will be needed later."""

    @abstractmethod
    def wait(self) -> None:
        """Block until the result is there. Waiting again costs nothing."""

    @abstractmethod
    def done(self) -> bool:
        """Whether :meth:`wait` would return at once."""

    def call_when_done(self, call: Callable[[], None]) -> None:  # noqa: B027
        """Call a function, on any thread, at the moment the result is there.

        Never, if what carries the team cannot tell that moment.

        Args:
            call: The function, without arguments.

        """


class Team(ABC):
    """Workers that communicate. All members make the same calls in the same order.

    Tensors are changed in place; they may be read again after the returned :class:`Pending` was
    waited for.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of workers."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """This worker's place in the team, from 0."""

    @property
    @abstractmethod
    def bytes_handed(self) -> int:
        """Bytes of tensors that this worker has handed to the team so far."""

    @property
    @abstractmethod
    def keeps_order(self) -> bool:
        """Whether two members' messages to each other are carried in the order of their calls.

        NCCL does: one of the two must send first, and the other receive. Elsewhere all should
        receive first: Gloo queues a receive behind earlier sends, so that messages that could cross
        on the link would follow one another.
        """

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; every member gets the result.

        Args:
            tensor: This member's values; becomes the result.
            op: How to combine: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.

        """

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Give every member the tensor of one of them.

        Args:
            tensor: The values to send; becomes the source's on all others.
            source: The rank of the member whose values all get.

        """

    def reduce(self, tensor: torch.Tensor, root: int, op: Op = "sum") -> Pending:
        """Combine the members' tensors for one of them; what the others then hold is not said.

        Args:
            tensor: This member's values; becomes the result where ``root`` is.
            root: The rank of the member that gets the result.
            op: How to combine: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.

        """
        check_rank(root, self.size)
        return self.all_reduce(tensor, op)

    @abstractmethod
    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; each member gets its share, in rank order.

        Args:
            output: Becomes this member's share of the result.
            tensor: This member's values, ``size`` times as many as ``output`` has. They may be
                changed.
            op: How to combine: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.

        """

    @abstractmethod
    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Lay the members' tensors one after another, in rank order.

        Args:
            output: Becomes all members' values, ``size`` times as many as ``tensor`` has.
            tensor: This member's values.

        """

    @abstractmethod
    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Send to one member, which calls :meth:`receive`.

        Args:
            tensor: The values to send.
            to: The rank of the member that receives them.

        """

    @abstractmethod
    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Receive what one member sends.

        Args:
            tensor: Becomes the values that were sent.
            source: The rank of the member that sends them.

        """

    @abstractmethod
    def agree(self, number: float, op: Op = "mean") -> float:
        """Combine one number of every member and return the result; blocks.

        Args:
            number: This member's number.
            op: How to combine: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.

        """

    @abstractmethod
    def barrier(self) -> None:
        """Block until all members have called this."""

    @abstractmethod
    def gather(self, data: bytes) -> list[bytes]:
        """Everybody's bytes, by rank; blocks. For small things: names, checks, error messages.

        Args:
            data: This member's bytes, as many as it likes.

        """

    def announce(
        self, kind: str, num_bytes: int, begin: Callable[[], Pending], *, how: str = ""
    ) -> Pending:
        """Begin an operation of all members that is made of messages.

        A team that looks after its members compares it with theirs before the first message, and
        warns who never waits for it.

        Args:
            kind: Which operation, such as ``"all_reduce"``.
            num_bytes: Of this member's tensor.
            begin: Begins the messages.
            how: What else must be the same for all members, as text.

        """
        return begin()


class WrappedTeam(Team):
    """What teams that stand in front of another team have in common."""

    def __init__(self, team: Team) -> None:
        self._team = team

    @property
    def size(self) -> int:
        """The number of workers."""
        return self._team.size

    @property
    def rank(self) -> int:
        """This worker's place in the team."""
        return self._team.rank

    @property
    def bytes_handed(self) -> int:
        """Bytes handed to the team that does the work."""
        return self._team.bytes_handed

    @property
    def keeps_order(self) -> bool:
        """As the team that does the work."""
        return self._team.keeps_order

    def announce(
        self, kind: str, num_bytes: int, begin: Callable[[], Pending], *, how: str = ""
    ) -> Pending:
        """Tell the team that does the work."""
        return self._team.announce(kind, num_bytes, begin, how=how)
