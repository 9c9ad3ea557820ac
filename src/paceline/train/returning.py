"""Nodes that were lost come back between two steps, with the others' state."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from paceline.teams import Workers
from paceline.train.contents import Contents


class Returning:
    """Gives nodes that come back the state of those that trained on: all of it.

    The training after it is that of a node that had never left. It happens at the end of a step
    after which an exchange has begun.
    """

    def __init__(
        self,
        workers: Workers,
        contents: Callable[[], Contents],
        described: Mapping[str, str],
    ) -> None:
        assert workers.survivors is not None
        self._workers = workers
        self._survivors = workers.survivors
        self._contents = contents
        self._digest = hashlib.blake2b(json.dumps(described).encode(), digest_size=32).digest()
        self._place = workers.world.rank

    def let_in(self) -> None:
        """Let in who waits, if anybody does. All nodes call it at the end of every step."""
        if not self._survivors.is_somebody_waiting():
            return
        self._survivors.admit(self._give)

    def come_back(self) -> None:
        """Wait to be let in, and take over the others' state."""
        taken: list[bytes] = []

        def take() -> None:
            taken[:] = [self._receive()]

        self._survivors.come_back(take)
        digest, data = taken[0][:32], taken[0][32:]
        if digest != self._digest:
            raise ValueError(
                "this node attaches something else than the nodes it comes back to; start it with "
                "the same program and the same options"
            )
        # Every worker has the same bytes: tensors and plain values, never code.
        state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
        contents = self._contents()
        contents.check(state)
        contents.load_strategy(state)
        contents.load_training(state)
        contents.load_registered(state)

    def are_all_here(self) -> bool:
        """Whether no node is lost; all nodes say the same. Warns if one is."""
        world = self._workers.world
        num_here = round(world.agree(1.0, "sum"))
        if num_here < world.size:
            warnings.warn(
                f"{world.size - num_here} of {world.size} workers are lost, so nothing was saved; "
                "a checkpoint holds the state of all, and is saved again when they are back",
                RuntimeWarning,
                stacklevel=3,
            )
        return num_here == world.size

    def _give(self) -> None:
        if self._place == self._survivors.source:
            file = io.BytesIO()
            torch.save(self._contents().state({}), file)
            self._pass(self._digest + file.getvalue())
        else:
            self._pass(b"")

    def _receive(self) -> bytes:
        return self._pass(b"")

    def _pass(self, data: bytes) -> bytes:
        """Give all workers the bytes of one."""
        group, source = self._survivors.world, self._survivors.source
        length = torch.tensor([len(data)])
        group.broadcast(length, source)
        # Never empty; frombuffer refuses that.
        own = bytearray(data) if data else bytearray(int(length.item()))
        flat = torch.frombuffer(own, dtype=torch.uint8)
        group.broadcast(flat, source)
        return flat.numpy().tobytes()
