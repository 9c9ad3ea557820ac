"""In which form parameters travel between nodes.

``fp32`` sends the values themselves. A narrow wire must not round them: what travels is the change
since the last agreed value, and what rounding takes away is added to the next exchange (error
feedback; Seide et al. 2014, "1-bit stochastic gradient descent"). A sum of narrow numbers would be
rounded at every hop of a ring, so narrow exchanges go in two rounds: every node sends each other
node that one's shard; it averages the shard in full precision, and gives all the result. Each round
rounds once, and each carries its error on (the scheme of Tang et al. 2019, "DoubleSqueeze").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch

from paceline.teams import Pending, Team

WireName = Literal["fp32", "bf16", "fp16", "int8"]

# int8 scales each block by its largest value: small, so that one large change in a layer does not
# cost the others their precision; large, so that the scales add only 0.4 % to the message.
_BLOCK = 1024
_MOST_CHUNKS = 1 << 16


class Wire(ABC):
    """How one flat tensor of parameters travels. Called from background work, in this order."""

    def __init__(self, numel: int, chunk_numel: int) -> None:
        num_chunks = -(-numel // chunk_numel)
        if num_chunks > _MOST_CHUNKS:
            raise ValueError(
                f"chunk_bytes would cut an exchange into {num_chunks:,} parts, and each part costs "
                f"a message: give chunk_bytes of {16 << 20}, or at least so many that there are no "
                f"more than {_MOST_CHUNKS:,}"
            )
        self.chunks = [
            slice(begin, min(begin + chunk_numel, numel)) for begin in range(0, numel, chunk_numel)
        ]
        """The tensor travels in these parts, one after the other."""

    @abstractmethod
    def prepare(self, sent: torch.Tensor, *, is_healthy: bool) -> None:
        """Note what this node sends; every worker of the node does so, with the same result."""

    @abstractmethod
    def average(
        self, out: torch.Tensor, index: int, across: Team, total: float, weights: Sequence[float]
    ) -> None:
        """Average one chunk over the healthy nodes; one worker of each node does so.

        Args:
            out: Where the average of the whole tensor belongs.
            index: Which of the chunks.
            across: One worker of each node.
            total: What the healthy nodes count together.
            weights: What each node counts, by its worker's rank in ``across``.

        """

    @abstractmethod
    def settle(self, agreed: torch.Tensor) -> None:
        """Note what all nodes now agree on; every worker of the node does so."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.check_state_dict(state)

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse what :meth:`load_state_dict` could not take over."""
        if state:
            raise ValueError("the checkpoint was saved with a narrow wire; attach with the same")


class FullWire(Wire):
    """The values themselves, summed on their way."""

    def prepare(self, sent: torch.Tensor, *, is_healthy: bool) -> None:
        """Note the values; an unhealthy node adds nothing to the sum."""
        self._sent = sent if is_healthy else torch.zeros_like(sent)

    def average(
        self, out: torch.Tensor, index: int, across: Team, total: float, weights: Sequence[float]
    ) -> None:
        """Sum over all nodes, then divide by what those in the sum count."""
        chunk = self.chunks[index]
        part = out[chunk].copy_(self._sent[chunk])
        if weights[across.rank] != 1:
            part.mul_(weights[across.rank])
        across.all_reduce(part, "sum").wait()
        part.div_(total)

    def settle(self, agreed: torch.Tensor) -> None:
        """Nothing is carried on."""


class DeltaWire(Wire):
    """The change since the last agreed value, rounded, with the error carried on."""

    def __init__(
        self, name: WireName, agreed: torch.Tensor, *, num_nodes: int, chunk_numel: int
    ) -> None:
        super().__init__(agreed.numel(), chunk_numel)
        self._codec = _CODECS[name]
        self._num_nodes = num_nodes
        self._agreed = agreed.clone()
        self._error = torch.zeros_like(agreed)
        self._return_error = torch.zeros_like(agreed)
        self._encoded: list[list[torch.Tensor]] = []

    def prepare(self, sent: torch.Tensor, *, is_healthy: bool) -> None:
        """Encode the change and last time's error; what rounding takes now comes next time."""
        delta = sent - self._agreed + self._error if is_healthy else torch.zeros_like(sent)
        self._encoded = []
        for chunk in self.chunks:
            shards = self._shards(delta[chunk])
            encoded = [self._codec.encode(shard) for shard in shards]
            rounded = torch.cat([self._codec.decode(part) for part in encoded])
            self._error[chunk] = delta[chunk] - rounded[: chunk.stop - chunk.start]
            self._encoded.append(encoded)

    def _shards(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Equal parts, one for each node to average, padded to whole blocks."""
        missing = -values.numel() % (self._num_nodes * _BLOCK)
        return list(torch.nn.functional.pad(values, (0, missing)).view(self._num_nodes, -1))

    def average(
        self, out: torch.Tensor, index: int, across: Team, total: float, weights: Sequence[float]
    ) -> None:
        """Average one shard of the chunk here, and collect the other nodes' shards."""
        chunk, encoded = self.chunks[index], self._encoded[index]
        mean = self._mean_of_own_shard(encoded, across, total, weights)
        shard_numel = mean.numel()

        # This worker's error of the second round, in its own shard of this chunk.
        begin = min(chunk.start + across.rank * shard_numel, chunk.stop)
        own = slice(begin, min(begin + shard_numel, chunk.stop))
        own_numel = own.stop - own.start
        mean[:own_numel].add_(self._return_error[own])
        answer = self._codec.encode(mean)
        lost = mean.sub_(self._codec.decode(answer))
        self._return_error[own] = lost[:own_numel]

        answers = torch.empty(
            self._num_nodes * answer.numel(), dtype=torch.uint8, device=answer.device
        )
        across.all_gather(answers, answer).wait()
        parts = [self._codec.decode(part) for part in answers.view(self._num_nodes, -1)]
        change = torch.cat(parts)[: chunk.stop - chunk.start]
        torch.add(self._agreed[chunk], change, out=out[chunk])

    def _mean_of_own_shard(
        self, encoded: list[torch.Tensor], across: Team, total: float, weights: Sequence[float]
    ) -> torch.Tensor:
        received = [torch.empty_like(part) for part in encoded]
        received[across.rank] = encoded[across.rank]
        pendings: list[Pending] = []
        for peer in range(across.size):
            if peer == across.rank:
                continue
            sends_first = across.keeps_order and peer > across.rank
            for is_sent in (sends_first, not sends_first):
                pendings.append(
                    across.send(encoded[peer], peer)
                    if is_sent
                    else across.receive(received[peer], peer)
                )
        for pending in pendings:
            pending.wait()
        parts = [self._codec.decode(part) for part in received]
        for part, weight in zip(parts, weights, strict=True):
            if weight != 1:
                part.mul_(weight)
        return torch.stack(parts).sum(dim=0).div_(total)

    def settle(self, agreed: torch.Tensor) -> None:
        """All agree to the bit: all decoded the same bytes."""
        self._agreed.copy_(agreed)
        self._encoded = []

    def state_dict(self) -> dict[str, Any]:
        """The agreed values and the errors to be carried on."""
        return {
            "agreed": self._agreed,
            "error": self._error,
            "return_error": self._return_error,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore agreed values and errors."""
        self.check_state_dict(state)
        self._agreed.copy_(state["agreed"])
        self._error.copy_(state["error"])
        self._return_error.copy_(state["return_error"])

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse the state of a wire that carries the values themselves."""
        if not state:
            raise ValueError("the checkpoint was saved with wire='fp32'; attach with it")


class _Codec(ABC):
    """Values to bytes and back; numbers of values are multiples of the block."""

    @abstractmethod
    def encode(self, values: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def decode(self, data: torch.Tensor) -> torch.Tensor: ...


class _Cast(_Codec):
    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        # A change beyond fp16's range arrives in several exchanges instead of as infinity.
        largest = torch.finfo(self._dtype).max
        return values.clamp(-largest, largest).to(self._dtype).view(torch.uint8)

    def decode(self, data: torch.Tensor) -> torch.Tensor:
        return data.view(self._dtype).to(torch.float32)


class _Int8(_Codec):
    def encode(self, values: torch.Tensor) -> torch.Tensor:
        blocks = values.view(-1, _BLOCK)
        scales = blocks.abs().amax(dim=1, keepdim=True) / 127.0
        safe = torch.where(scales > 0, scales, torch.ones_like(scales))
        rounded = (blocks / safe).round_().to(torch.int8)
        # The scales last: a view of bytes as float32 must begin at a multiple of four.
        return torch.cat([rounded.view(-1).view(torch.uint8), scales.view(-1).view(torch.uint8)])

    def decode(self, data: torch.Tensor) -> torch.Tensor:
        num_blocks = data.numel() // (_BLOCK + 4)
        rounded, scales = torch.split(data, [num_blocks * _BLOCK, num_blocks * 4])
        blocks = rounded.view(torch.int8).view(-1, _BLOCK)
        return (blocks * scales.view(torch.float32).view(-1, 1)).view(-1)


_CODECS: dict[str, _Codec] = {
    "bf16": _Cast(torch.bfloat16),
    "fp16": _Cast(torch.float16),
    "int8": _Int8(),
}


def make_wire(name: WireName, values: torch.Tensor, *, num_nodes: int, chunk_bytes: int) -> Wire:
    """The wire for parameters that are now ``values`` on all nodes."""
    chunk_numel = max(1, chunk_bytes // values.element_size())
    # float64 parameters ask for precision; they travel as they are.
    if name == "fp32" or values.dtype == torch.float64:
        return FullWire(values.numel(), chunk_numel)
    return DeltaWire(name, values, num_nodes=num_nodes, chunk_numel=chunk_numel)
