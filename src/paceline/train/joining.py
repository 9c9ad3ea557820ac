"""Workers with unequal numbers of batches: who has run out stands by until all have."""

from __future__ import annotations

from typing import Literal

from paceline.teams import Workers

Moment = Literal["backward", "step", "report"]

_DOING = {
    "backward": "averages gradients",
    "step": "has ended a step",
    "report": "reports a metric",
}


class Joining:
    """What all workers are about to do, told before each moment at which they meet."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._turn = 0
        self._last_turns = [0] * workers.world.size
        self.active = list(range(workers.world.size))
        """Workers that still had data at the last moment, by rank."""

    @property
    def are_all_active(self) -> bool:
        """Whether nobody had run out at the last moment."""
        return len(self.active) == self._workers.world.size

    def tell(self, moment: Moment | None) -> Moment | None:
        """Say what this worker is about to do (nothing: it has run out); what the others are."""
        said = [part.decode() for part in self._workers.world.gather((moment or "").encode())]
        self.active = [rank for rank, each in enumerate(said) if each]
        self._turn += 1
        for rank in self.active:
            self._last_turns[rank] = self._turn
        if not self.active:
            return None
        first = self.active[0]
        for rank in self.active:
            if said[rank] != said[first]:
                raise RuntimeError(
                    f"worker {rank} {_DOING[said[rank]]} while worker {first} "
                    f"{_DOING[said[first]]}; inside join() all workers must run the same loop"
                )
        return said[first]  # type: ignore[return-value]

    def last_of(self, ranks: list[int]) -> int | None:
        """Of these workers, the first that had data the longest; None if all ended together."""
        turns = [self._last_turns[rank] for rank in ranks]
        return None if len(set(turns)) == 1 else turns.index(max(turns))
