"""A team on a ``torch.distributed`` process group: NCCL, Gloo, MPI, whatever torch offers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from threading import get_ident
from time import monotonic

import torch
import torch.distributed as dist

from paceline.teams.groups import home_device
from paceline.teams.owed import MessagesPending, OwedPending
from paceline.teams.team import Op, Pending, Team, check_op, check_rank, told_how
from paceline.teams.watch import BACKGROUND, Begun, Call, Watch, is_about_connections

# torch 2.13 renamed these two; earlier versions know the old names alone.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


_SAID_BYTES = 128
"""In which a member says what it is about to begin."""


class WorkPending(OwedPending):
    """A ``torch.distributed`` work handle; its waits are known to the watch."""

    def __init__(
        self, work: dist.Work | None, call: Call, watch: Watch, *, is_on_host: bool = False
    ) -> None:
        super().__init__(call, watch)
        self._work = work
        self._is_owed = work is not None
        self._is_on_host = is_on_host

    def wait(self) -> None:
        """Block until the work is done (on CUDA: until the stream knows to wait for it)."""
        self._is_owed = False
        if self._work is None:
            return
        thread, waits = get_ident(), self._watch.waits
        waits[thread] = self._call, monotonic()
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._watch.explain(self._call, error) from error
        finally:
            waits.pop(thread, None)
        self._work = None

    def done(self) -> bool:
        """Whether the work is done."""
        self._is_owed = False
        return self._work is None or self._work.is_completed()

    def call_when_done(self, call: Callable[[], None]) -> None:
        """Call a function when the work is done, if the host does it: CUDA's is only queued."""
        if self._work is None or not self._is_on_host:
            return
        # Messages, for one, do not offer this; torch says so only when asked.
        with contextlib.suppress(RuntimeError):
            self._work.get_future().add_done_callback(lambda _: call())


class StagedPending(Pending):
    """A result that arrives in other memory than where it belongs."""

    def __init__(self, work: Pending, staged: torch.Tensor, tensor: torch.Tensor) -> None:
        self._work = work
        self._staged = staged
        self._tensor = tensor

    def wait(self) -> None:
        """Block until the result is there, then put it where it belongs."""
        self._work.wait()
        self._tensor.copy_(self._staged)

    def done(self) -> bool:
        """Whether the result is there."""
        return self._work.done()


class GroupTeam(Team):
    """A team on a process group that this worker is a member of."""

    def __init__(
        self, group: dist.ProcessGroup, *, name: str = "team", watch: Watch | None = None
    ) -> None:
        self._name = name
        self._watch = Watch() if watch is None else watch
        self._group: dist.ProcessGroup | None = group
        # Gloo's collectives stage a GPU's tensors; its messages would take them for the host's.
        self._stages_messages = "cuda:gloo" in dist.get_backend_config(group)
        self._ranks = dist.get_process_group_ranks(group)
        self._rank = dist.get_rank(group)
        self._bytes_handed = 0

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group."""
        if self._group is None:
            raise ValueError("this team was closed; find the workers again (attach does)")
        return self._group

    def close(self) -> None:
        """Let go of the group, which lives as long as anybody holds it."""
        self._group = None

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._ranks)

    @property
    def rank(self) -> int:
        """This worker's place in the team."""
        return self._rank

    @property
    def bytes_handed(self) -> int:
        """Bytes of tensors handed over so far."""
        return self._bytes_handed

    @property
    def keeps_order(self) -> bool:
        """Where a GPU's messages go by NCCL."""
        return "nccl" in dist.get_backend_config(self.group)

    def _begin(
        self,
        kind: str,
        tensor: torch.Tensor,
        begin: Callable[[], dist.Work | None],
        *,
        how: str = "",
        peer: int | None = None,
    ) -> Pending:
        if peer is None:
            call = self._note(kind, tensor.nbytes, how)
        else:  # messages are not everybody's
            call = Call(self._name, kind, self._watch.counts.get(self._name, 0), peer)
        try:
            work = begin()
        except RuntimeError as error:
            if not is_about_connections(error):
                raise
            raise self._watch.explain(call, error) from error
        return WorkPending(work, call, self._watch, is_on_host=tensor.device.type == "cpu")

    def announce(
        self, kind: str, num_bytes: int, begin: Callable[[], Pending], *, how: str = ""
    ) -> Pending:
        """Note an operation that is made of messages, as one of the backend's own."""
        call = self._note(kind, num_bytes, how)
        return MessagesPending(begin(), call, self._watch)

    def _note(self, kind: str, num_bytes: int, how: str) -> Call:
        call = self._watch.note(self._name, kind, num_bytes, how)
        if self._watch.is_checking and self.size > 1:
            self._check(call)
        return call

    def _check(self, call: Call) -> None:
        """Compare with the other members what is about to begin; all raise if it differs."""
        own = self._watch.begun[self._name][-1]
        how = own.how
        if not self._name.startswith(BACKGROUND):  # which may be at any step
            how = f"{how}, at step {self._watch.step + 1}"
        said = json.dumps([own.kind, own.num_bytes, how]).encode().ljust(_SAID_BYTES)
        device = home_device(self.group)
        told = torch.frombuffer(bytearray(said), dtype=torch.uint8).to(device)
        heard = told.new_empty(self.size * _SAID_BYTES)
        work = _all_gather(heard, told, self.group, async_op=True)
        WorkPending(work, call, self._watch).wait()
        rows = [bytes(row) for row in heard.view(self.size, -1).tolist()]
        begun = {place: Begun(own.number, *json.loads(row)) for place, row in enumerate(rows)}
        if len(set(begun.values())) > 1:
            raise self._watch.disagree(call, begun)

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors in place.

        A mean is divided before it is summed, as torch's DDP does: the sum cannot overflow a
        narrow type that each member's value fits in.
        """
        check_op(op, tensor.dtype)
        if _has_gaps(tensor):
            staged = tensor.contiguous()
            return StagedPending(self.all_reduce(staged, op), staged, tensor)
        if op == "mean" and self.size > 1:
            tensor.div_(self.size)
        self._bytes_handed += tensor.nbytes
        return self._begin(
            "all_reduce",
            tensor,
            lambda: dist.all_reduce(tensor, _REDUCE_OPS[op], self.group, async_op=True),
            how=told_how(tensor, op),
        )

    def broadcast(self, tensor: torch.Tensor, source: int) -> Pending:
        """Give every member the source's tensor."""
        check_rank(source, self.size)
        if _has_gaps(tensor):
            staged = tensor.contiguous()
            return StagedPending(self.broadcast(staged, source), staged, tensor)
        self._bytes_handed += tensor.nbytes
        return self._begin(
            "broadcast",
            tensor,
            lambda: dist.broadcast(tensor, self._ranks[source], self.group, async_op=True),
            how=told_how(tensor, f"from {source}"),
        )

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Op = "sum") -> Pending:
        """Combine the members' tensors; each gets its share."""
        check_op(op, tensor.dtype)
        if op == "mean" and self.size > 1:
            tensor.div_(self.size)
        self._bytes_handed += tensor.nbytes
        return self._begin(
            "reduce_scatter",
            tensor,
            lambda: _reduce_scatter(output, tensor, _REDUCE_OPS[op], self.group, async_op=True),
            how=told_how(tensor, op),
        )

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Lay the members' tensors one after another."""
        self._bytes_handed += tensor.nbytes
        return self._begin(
            "all_gather",
            tensor,
            lambda: _all_gather(output, tensor, self.group, async_op=True),
            how=told_how(tensor),
        )

    def send(self, tensor: torch.Tensor, to: int) -> Pending:
        """Send to one member."""
        check_rank(to, self.size)
        message = tensor.cpu() if self._stages_messages else tensor
        self._bytes_handed += message.nbytes
        peer = self._ranks[to]
        return self._begin(
            "send", message, lambda: dist.isend(message, peer, self.group), peer=peer
        )

    def receive(self, tensor: torch.Tensor, source: int) -> Pending:
        """Receive from one member; nothing is handed over."""
        check_rank(source, self.size)
        peer = self._ranks[source]

        def receive_into(target: torch.Tensor) -> Pending:
            return self._begin(
                "receive", target, lambda: dist.irecv(target, peer, self.group), peer=peer
            )

        if not (tensor.is_cuda and self._stages_messages):
            return receive_into(tensor)
        staged = torch.empty_like(tensor, device="cpu", pin_memory=True)
        return StagedPending(receive_into(staged), staged, tensor)

    def agree(self, number: float, op: Op = "mean") -> float:
        """Combine one number of every member."""
        # float64: Python's own precision, so that step counts and times survive.
        value = torch.tensor([number], dtype=torch.float64, device=home_device(self.group))
        self.all_reduce(value, op).wait()
        return float(value.item())

    def barrier(self) -> None:
        """Block until all members have called this."""
        flag = torch.zeros(1, dtype=torch.float64, device=home_device(self.group))
        self._bytes_handed += flag.nbytes
        # Not torch's barrier: NCCL's picks a device of its own.
        self._begin(
            "barrier", flag, lambda: dist.all_reduce(flag, group=self.group, async_op=True)
        ).wait()
        flag.item()  # CUDA's stream has only been told to wait

    def gather(self, data: bytes) -> list[bytes]:
        """Everybody's bytes: first their lengths, then all of them, padded to the longest."""
        device = home_device(self.group)
        lengths = torch.zeros(self.size, dtype=torch.int64, device=device)
        own_length = torch.tensor([len(data)], dtype=torch.int64, device=device)
        self.all_gather(lengths, own_length).wait()
        longest = max(1, int(lengths.max().item()))
        padded = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8)
        gathered = torch.empty(self.size * longest, dtype=torch.uint8, device=device)
        self.all_gather(gathered, padded.to(device)).wait()
        rows = gathered.view(self.size, longest).cpu()
        return [
            row[:length].numpy().tobytes()
            for row, length in zip(rows, lengths.tolist(), strict=True)
        ]


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values do not lie side by side: a backend would take what is between."""
    if tensor.is_contiguous():
        return False
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return last + 1 != tensor.numel()
