"""Nodes that were lost come back between two steps, with the others' state."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from paceline.teams import Workers
from paceline.teams.crossing import LeftBehindError
from paceline.train.contents import Contents


class Returning:
    """Gives nodes that come back the state of those that trained on: all of it.

    The training after it is that of a node that had never left. It happens when a step is about to
    be counted, after an exchange has begun.
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
        self.is_resting = False
        """Whether it has come back since its last step; it takes part again from the next on."""

    def begin(self) -> None:
        """Come back as a program that was started again."""
        self._come_back()
        self.is_resting = True

    def count_step(self, count: Callable[[], None]) -> None:
        """Count a step as the others do. Who waits is let in just before.

        So a node that comes back counts this step with the others, and then does all that they do.
        It takes no part in what they have done since the step before.

        Args:
            count: Tells the strategy; may find that the others have left this node behind.

        """
        self.is_resting = False
        must_come_back = False
        while True:
            try:
                if must_come_back:
                    self._come_back()
                elif self._survivors.is_somebody_waiting():
                    self._survivors.admit(self._give)
                count()
                return
            except LeftBehindError:
                must_come_back = True

    def between_steps(self, work: Callable[[], None]) -> None:
        """Do something with the others, unless this node has just come back, or must."""
        if self.is_resting:
            return
        try:
            work()
        except LeftBehindError:
            self._come_back()
            self.is_resting = True

    def _come_back(self) -> None:
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
