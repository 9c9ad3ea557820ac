"""How a job's workers tell each other what they see: through a store, not through what is tested.

A process group may be what is broken. The store needs no more than the first worker's address.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from paceline.doctor.facts import Facts
from paceline.teams.launcher import Place

_NUM_PINGS = 5


class Meeting:
    """One worker's side of the meeting; the first worker asks, and the others answer."""

    def __init__(self, place: Place, environment: Mapping[str, str], *, timeout_s: float) -> None:
        # torchrun's agent has a store already, where the first worker would open another.
        is_held_by_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._place = place
        self._deadline_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        store = TCPStore(
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            None,
            place.rank == 0 and not is_held_by_agent,
            timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
        self.store: Store = PrefixStore(f"paceline/doctor/{restarts}", store)

    def is_taken(self) -> bool:
        """Whether another worker has this one's rank."""
        return self.store.add(f"taken/{self._place.rank}", 1) > 1

    def tell(self, facts: Facts) -> None:
        """Give the first worker what this one sees."""
        self.store.set(f"facts/{self._place.rank}", facts.model_dump_json())

    def hear(self) -> dict[int, Facts]:
        """What all workers see, by rank; those that do not come in time are not in it."""
        heard = {}
        for rank in range(self._place.num_workers):
            text = self._get(f"facts/{rank}")
            if text is not None:
                heard[rank] = Facts.model_validate_json(text)
        return heard

    def _get(self, key: str) -> str | None:
        left_s = max(0.1, self._deadline_s - time.monotonic())
        try:
            self.store.wait([key], timedelta(seconds=left_s))
        except RuntimeError:
            return None
        return self.store.get(key).decode()

    def plan(self, *, clocks: list[int], is_tried: bool) -> None:
        """Say what happens next: whose clocks are read, and whether a group is tried."""
        self.store.set("plan", json.dumps({"clocks": clocks, "is_tried": is_tried}))

    def next_plan(self) -> tuple[list[int], bool]:
        """What the first worker has planned."""
        self._deadline_s = time.monotonic() + 2 * self._timeout_s
        text = self._get("plan")
        if text is None:
            return [], False
        plan = json.loads(text)
        return plan["clocks"], plan["is_tried"]

    def compare_clock(self) -> None:
        """Ask for the first worker's time, as NTP does: the shortest round trip counts."""
        rank, trips = self._place.rank, []
        for number in range(_NUM_PINGS):
            sent_s = time.time()
            self.store.set(f"ping/{rank}/{number}", "")
            told_s = float(self.store.get(f"pong/{rank}/{number}"))
            now_s = time.time()
            trips.append((now_s - sent_s, (sent_s + now_s) / 2 - told_s))
        trip_s, ahead_s = min(trips)
        self.store.set(f"ahead/{rank}", json.dumps({"ahead_s": ahead_s, "trip_s": trip_s}))

    def clocks_ahead_s(self, ranks: list[int]) -> dict[int, tuple[float, float]]:
        """How far workers' clocks are ahead of this one's, and how far off that may be."""
        found = {}
        for rank in ranks:
            for number in range(_NUM_PINGS):
                self.store.wait([f"ping/{rank}/{number}"])
                self.store.set(f"pong/{rank}/{number}", repr(time.time()))
            told = json.loads(self.store.get(f"ahead/{rank}"))
            found[rank] = (told["ahead_s"], told["trip_s"] / 2)
        return found

    def leave(self, heard: Iterable[int] = ()) -> None:
        """Stay until the first worker has heard all; it leaves last, with the store."""
        if self._place.rank == 0:
            self.store.set("over", "")
            self._deadline_s = time.monotonic() + self._timeout_s
            for rank in set(heard) - {0}:
                self._get(f"left/{rank}")
            return
        self._deadline_s = time.monotonic() + 2 * self._timeout_s
        self._get("over")
        self.store.set(f"left/{self._place.rank}", "")
