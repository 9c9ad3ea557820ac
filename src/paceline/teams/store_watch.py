"""Looks after the workers of a real job: who has not come, who died, who waits for whom.

Every worker leaves a sign of life in the job's store about once per second. Nobody reads it until
somebody has waited for long, so that a thousand workers do not flood the store.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Literal

from torch._C._distributed_c10d import Store

from paceline.teams.beat import Beat, Member, Wait, join_names
from paceline.teams.clerk import Clerk, UnreachableError, get_all, get_if_there
from paceline.teams.deadlock import find_deadlock
from paceline.teams.disagreement import describe, find_disagreement
from paceline.teams.team import TeamError
from paceline.teams.watch import BACKGROUND, MEETING, Begun, Call, Watch, first_line

_LONGEST_NOTICE_S = 30.0
_LONGEST_BEAT_S = 1.0
# Beats without news after which a worker is called silent; and the least time of that.
_SILENT_BEATS = 3
_LEAST_SILENCE_S = 2.0
# How long to look for the one who died. Its machine is told at once, others miss its beats.
_INQUEST_S = 4.0
_FAILURE = "failure"
_FailureKind = Literal["died", "failed", "timeout", "deadlock"]
_NOBODY = "all others have come, so the network is slow or a link is down"


class StoreWatch(Watch):
    """One worker's watch. Everything it does is done on its own two threads."""

    def __init__(
        self,
        store: Store,
        *,
        prefix: str,
        rank: int,
        members: Sequence[Member],
        members_of: Callable[[str, int], Sequence[int]],
        is_speaker: bool,
        timeout_s: float,
        abort: Callable[[], None],
    ) -> None:
        super().__init__()
        self._rank = rank
        self._members = list(members)
        self._members_of = members_of
        self._is_speaker = is_speaker
        self._timeout_s = timeout_s
        self._abort = abort
        self._notice_s = min(_LONGEST_NOTICE_S, timeout_s / 4)
        self._beat_s = min(_LONGEST_BEAT_S + len(members) / 1000, 2.0, self._notice_s / 3)
        self._silence_s = max(_LEAST_SILENCE_S, _SILENT_BEATS * self._beat_s)
        self._answer_s = min(3.0, max(1.0, self._notice_s / 3))
        self._step_s = time.monotonic()
        self._noticed: tuple[Call, float] | None = None
        self._next_notice_s = self._next_check_s = self._notice_s
        self._suspicion: str | None = None
        self._verdict: str | None = None
        self._clerk = Clerk(store, prefix=prefix)
        self._last_beat = self._put_beat()
        self._last_beat.result(timeout_s)  # whoever looks for it later finds one
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="paceline-watch", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def know_clocks(self, ahead_s: Sequence[float]) -> None:
        """Learn how far each worker's clock is ahead of this one's."""
        self._members = [
            replace(member, ahead_s=each)
            for member, each in zip(self._members, ahead_s, strict=True)
        ]

    # What the training calls.

    def at_step(self, step: int) -> None:
        """So many steps were taken."""
        super().at_step(step)
        self._step_s = time.monotonic()

    def meet(self, what: str) -> None:
        """Wait until all workers are here."""
        if self._ended.is_set():
            raise ValueError(f"these workers were closed, and cannot meet for {what}")
        number = self.counts[MEETING] = self.counts.get(MEETING, 0) + 1
        call = Call(MEETING, what, number)
        thread = threading.get_ident()
        self.waits[thread] = call, time.monotonic()
        try:
            self._meet(call, f"met-{number}")
        finally:
            self.waits.pop(thread, None)

    def _meet(self, call: Call, key: str) -> None:
        begun_s = asked_s = time.monotonic()
        arrival = self._clerk.begin(lambda store: self._arrive(store, key))
        while True:
            waited_s = time.monotonic() - begun_s
            if self._verdict is not None:
                raise self._team_error(call, self._verdict)
            if waited_s > self._timeout_s:
                raise self._explain_timeout(call)
            try:
                arrival.result(self._answer_s)
                has_met, has_failed = self._clerk.ask(
                    lambda store: (store.check([key]), store.check([_FAILURE])),
                    timeout_s=self._answer_s,
                )
            except (TimeoutError, UnreachableError):
                time.sleep(0.1)  # the watch tells of it
                continue
            except RuntimeError as error:
                raise self._team_error(call, self._first_node_is_gone) from error
            if has_met:
                return
            if has_failed or time.monotonic() - asked_s > self._beat_s:
                asked_s = time.monotonic()
                if (blame := self._find_failure() or self._find_dead()) is not None:
                    raise self._team_error(call, blame)
            # A meeting takes a tenth longer than it must, and the store has time for others.
            time.sleep(min(max(waited_s / 10, 0.001), 0.1 + len(self._members) / 5000))

    def _arrive(self, store: Store, key: str) -> None:
        if store.add(f"{key}-count", 1) == len(self._members):
            store.set(key, "yes")

    def disagree(self, call: Call, begun: Mapping[int, Begun]) -> TeamError:
        """What to raise where members are about to begin different operations."""
        ranks = self._members_of(call.team, self._rank)
        calls = {ranks[place]: each for place, each in begun.items()}
        blame = describe(call.team, call.number, calls, members=self._members, step=self.step + 1)
        self.is_in_trouble = True
        self._put_failure("deadlock", blame)
        return self._team_error(call, blame)

    def explain(self, call: Call, error: Exception) -> TeamError:
        """Who is to blame: whoever is said to have failed, has died, or has not come."""
        self.is_in_trouble = True
        self.waits.pop(threading.get_ident(), None)  # nobody need be told any more
        if self._ended.is_set():
            return super().explain(call, error)
        if self._verdict is not None:
            return self._team_error(call, self._verdict)
        if any(word in str(error).lower() for word in ("timed out", "timeout")):
            return self._explain_timeout(call)
        return self._team_error(call, self._find_blame() or first_line(error))

    def fail(self, error: BaseException) -> None:
        """Tell the others why this worker will not come any more."""
        self.is_in_trouble = True
        if not isinstance(error, TeamError):
            failure = f"{type(error).__name__}: {first_line(error)}"
            self._put_failure("failed", f"{self._own} has failed with {failure}")

    def close(self) -> None:
        """Say goodbye and end both threads."""
        if self._ended.is_set():
            return
        self._ended.set()
        atexit.unregister(self.close)
        self._put_beat(is_over=True)
        self._thread.join(self._answer_s)
        self._clerk.close(timeout_s=self._answer_s)

    # Signs of life.

    @property
    def _own(self) -> Member:
        return self._members[self._rank]

    @staticmethod
    def _key(rank: int) -> str:
        return f"beat-{rank}"

    def _beat(self, is_over: bool = False) -> Beat:
        now_s = time.monotonic()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        waits = [
            Wait(call, now_s - since_s, names.get(thread, "").startswith("paceline-background"))
            for thread, (call, since_s) in list(self.waits.items())
        ]
        work = self.background_work
        return Beat(
            time_s=time.time(),
            step=self.step,
            since_step_s=now_s - self._step_s,
            counts=dict(self.counts),
            waits=tuple(waits),
            begun=self._begun_of(waits),
            is_background_busy=work is not None and not work.done(),
            is_over=is_over,
        )

    def _begun_of(self, waits: Sequence[Wait]) -> dict[str, tuple[Begun, ...]]:
        """What was begun over the teams that are waited for; nothing while all goes well."""
        slow = [wait.call.team for wait in waits if wait.for_s > self._notice_s / 2]
        return {team: tuple(self.begun[team]) for team in slow if team in self.begun}

    def _put_beat(self, *, is_over: bool = False) -> Future[None]:
        beat = self._beat(is_over).encode()
        return self._clerk.begin(lambda store: store.set(self._key(self._rank), beat))

    def _read_beats(self) -> dict[int, Beat]:
        ranks = range(len(self._members))
        keys = [self._key(rank) for rank in ranks]
        data = self._clerk.ask(lambda store: get_all(store, keys), timeout_s=self._answer_s)
        beats = {rank: Beat.decode(each) for rank, each in zip(ranks, data, strict=True)}
        return beats | {self._rank: self._beat()}

    def _age_s(self, rank: int, beat: Beat) -> float:
        return max(0.0, time.time() - beat.time_s + self._members[rank].ahead_s)

    # The watch's own thread.

    def _look_on(self) -> None:
        while not self._ended.wait(self._beat_s):
            if self._last_beat.done():  # the store may be slow
                self._last_beat = self._put_beat()
            waits = self._beat().waits
            try:
                self._look_at([wait for wait in waits if wait.call.team != BACKGROUND])
            except UnreachableError:
                continue

    def _look_at(self, waits: Sequence[Wait]) -> None:
        if not waits:
            return
        wait = max(waits, key=lambda wait: wait.for_s)
        begun_s = time.monotonic() - wait.for_s
        if (
            self._noticed is None
            or self._noticed[0] != wait.call
            or abs(self._noticed[1] - begun_s) > 1.0
        ):
            self._noticed = wait.call, begun_s
            self._next_notice_s = self._next_check_s = self._notice_s
            self._suspicion = None
        if wait.for_s >= self._next_notice_s and self._is_speaker:
            self._say(wait)
        if wait.for_s >= self._next_check_s:
            self._next_check_s = wait.for_s + max(2 * self._beat_s, self._notice_s / 4)
            # Where all wait, the first one does. One judge is enough, and spares the store.
            if self._rank == 0:
                self._judge()
            # Connections tell of a failed worker sooner, unless a process that it forked, such as
            # a DataLoader's, still holds them.
            if (verdict := self._find_failure(only=("deadlock", "failed"))) is not None:
                self._verdict = verdict
                self._abort()

    def _say(self, wait: Wait) -> None:
        missing = self._who_is_missing(wait.call)
        if missing == _NOBODY and wait.for_s < self._next_notice_s + self._silence_s:
            return  # somebody may have fallen silent a moment ago
        self._next_notice_s *= 2
        waited = f"{self._own} has waited {wait.for_s:.0f} s in {wait.call} {self._beat().at()}"
        print(f"paceline: {waited}; {missing}", file=sys.stderr, flush=True)

    def _judge(self) -> None:
        beats = self._read_beats()
        if any(self._age_s(rank, beat) > self._silence_s for rank, beat in beats.items()):
            return
        found = find_disagreement(beats, self._members, self._members_of) or find_deadlock(
            beats, self._members, self.missing_of, least_s=self._notice_s - self._beat_s
        )
        # Signs of life are a little old; what was seen twice is so.
        is_certain = found is not None and found == self._suspicion
        self._suspicion = found
        if found is not None and is_certain:
            self._put_failure("deadlock", found)

    # Who is to blame.

    def missing_of(self, rank: int, call: Call, beats: Mapping[int, Beat]) -> list[int]:
        """Who has not come to a call that a worker waits in; for a message, its other end."""
        if call.peer is not None:
            return [call.peer]
        members = self._members_of(call.team, rank)
        return [each for each in members if beats[each].counts.get(call.team, 0) < call.number]

    @property
    def _first_node_is_gone(self) -> str:
        return f"the first node, {self._members[0].node}, cannot be reached"

    def _who_is_missing(self, call: Call) -> str:
        try:
            beats = self._read_beats()
        except UnreachableError:
            return self._first_node_is_gone
        ages = {rank: self._age_s(rank, beat) for rank, beat in beats.items()}
        silent = {rank for rank, age_s in ages.items() if age_s > self._silence_s}
        members = set(self._members_of(call.team, self._rank))
        missing = set(self.missing_of(self._rank, call, beats)) | (silent & members)
        if not missing:
            return _NOBODY
        names = []
        for rank in sorted(missing):
            does = beats[rank].describe(ages[rank])
            if rank in silent and not beats[rank].is_over:
                does = f"no sign of life for {ages[rank]:.0f} s"
            if self._members[rank].has_died():
                does = "which has died"
            names.append(f"{self._members[rank]} ({does})")
        return f"not there: {join_names(names)}"

    def _explain_timeout(self, call: Call) -> TeamError:
        blame = self._find_failure(but="timeout") or self._find_dead()
        if blame is None:
            blame = f"timed out after {self._timeout_s:g} s; {self._who_is_missing(call)}"
            self._put_failure("timeout", f"{self._own} {blame}")
        return self._team_error(call, blame)

    def _team_error(self, call: Call, blame: str) -> TeamError:
        return TeamError(f"{self._own}: {call} failed {self._beat().at()}: {blame}")

    def _find_blame(self) -> str | None:
        deadline_s = time.monotonic() + _INQUEST_S
        while True:
            if (failure := self._find_failure()) is not None:
                return failure
            blame = self._find_dead() or self._find_silent()
            is_late = time.monotonic() > deadline_s
            blame = blame or (self._find_detached() if is_late else None)
            if blame is not None:
                self._put_failure("died", blame)
            if blame is not None or is_late:
                return blame
            time.sleep(0.1)

    def _find_dead(self) -> str | None:
        dead = [str(member) for member in self._members if member.has_died()]
        return f"{join_names(dead)} {'have' if len(dead) > 1 else 'has'} died" if dead else None

    def _find_silent(self) -> str | None:
        try:
            beats = self._read_beats()
        except UnreachableError:
            return self._first_node_is_gone
        silent = [
            str(self._members[rank])
            for rank, beat in beats.items()
            if self._age_s(rank, beat) > self._silence_s and not beat.is_over
        ]
        return f"no sign of life from {join_names(silent)}" if silent else None

    def _find_detached(self) -> str | None:
        try:
            beats = self._read_beats()
        except UnreachableError:
            return None
        gone = [str(self._members[rank]) for rank, beat in beats.items() if beat.is_over]
        return f"{join_names(gone)} {'have' if len(gone) > 1 else 'has'} detached" if gone else None

    # The first failure, which explains those that follow.

    def _put_failure(self, kind: _FailureKind, text: str) -> None:
        note = json.dumps({"kind": kind, "text": text})
        with contextlib.suppress(UnreachableError):
            self._clerk.ask(
                lambda store: store.compare_set(_FAILURE, "", note), timeout_s=self._answer_s
            )

    def _find_failure(
        self, *, only: Sequence[_FailureKind] = (), but: _FailureKind | None = None
    ) -> str | None:
        try:
            data = self._clerk.ask(
                lambda store: get_if_there(store, _FAILURE), timeout_s=self._answer_s
            )
        except UnreachableError:
            return None
        if data is None:
            return None
        note = json.loads(data)
        is_meant = note["kind"] != but and (not only or note["kind"] in only)
        return str(note["text"]) if is_meant else None
