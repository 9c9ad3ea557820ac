"""Nodes that were lost come back between two steps, with the others' state."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import torch

from paceline.teams import Workers
from paceline.teams.crossing import LeftBehindError
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
        self._began_at: int | None = None

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

    def begin(self) -> None:
        """Come back as a program that was started again, and has taken no step."""
        self.come_back()
        self._began_at = self._step()

    def has_just_begun(self) -> bool:
        """Whether this node has the others' state and has taken no step since.

        Its program then loads no checkpoint: the others did so when they began.
        """
        return self._began_at == self._step()

    def while_saving(self, save: Callable[[], Future[None]]) -> Future[None]:
        """Save; a node that the others leave behind meanwhile comes back, and has saved nothing."""
        try:
            return save()
        except LeftBehindError:
            self.come_back()
            nothing: Future[None] = Future()
            nothing.set_result(None)
            return nothing

    def _step(self) -> int:
        strategy = self._contents().strategy
        assert strategy is not None
        return strategy.step

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
