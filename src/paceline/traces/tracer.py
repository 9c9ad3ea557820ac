"""The measured trace of a run: each worker records some steps, the first one writes the file."""

from __future__ import annotations

import json
import warnings
import zlib
from dataclasses import astuple
from pathlib import Path

from paceline.teams import Workers
from paceline.traces.trace import Span, check_trace_path, collective_name, write_trace


class Tracer:
    """Records what one worker does during some steps, for :func:`write_trace`.

    It observes the teams (:mod:`paceline.traces.traced_team`), and the training tells it
    which phase it is in. At every moment of a recorded step exactly one span of the track
    ``compute`` is open, so that their lengths add up to the step's.
    """

    def __init__(self, path: str | Path, steps: tuple[int, int]) -> None:
        self._path = check_trace_path(path)
        self._start, self._stop = steps
        if not 0 <= self._start < self._stop:
            raise ValueError(
                f"trace_steps={steps} must be the first step, from 0, and one after the last"
            )
        self.spans: list[Span] = []
        self.is_on = False
        self._num_traced = 0
        self._is_closed = False
        self._is_written = False
        self._phase = "forward"
        self._phase_start_s = 0.0
        self._step_start_s = 0.0

    def now(self) -> float:
        """Seconds since all workers agreed on a moment."""
        return self._clock() - self._zero_s

    def start(self, workers: Workers) -> None:
        """Agree with the others on a moment that all call zero: their clocks differ."""
        self._rank = workers.world.rank
        self._clock = workers.clock
        workers.world.barrier()
        self._zero_s = self._clock()
        self._begin_step(0, self.now())

    def enter(self, phase: str) -> None:
        """What the training does from now on."""
        self._enter(phase, self.now())

    def end_step(self, num_steps: int) -> None:
        """A step is over; ``num_steps`` were taken since the run began."""
        now_s = self.now()
        self._enter("forward", now_s)
        if self.is_on:
            self._note("step", f"step {num_steps - 1}", self._step_start_s, now_s)
            self._num_traced += 1
        self._begin_step(num_steps, now_s)

    def close(self) -> None:
        """Record no more steps, if any was recorded."""
        self.is_on = False
        self._is_closed = self._num_traced > 0

    def write(self, workers: Workers, *, title: str) -> None:
        """Collect the spans of all workers, which all call this, and write them on the first."""
        if self._is_written:
            return
        if self._num_traced == 0:
            # The next step may still be one to trace, from its own beginning.
            self.spans.clear()
            self._begin_step(self._num_steps, self.now())
            warnings.warn(
                f"no step was traced: the run ended before step {self._start}; see trace_steps",
                RuntimeWarning,
                stacklevel=4,
            )
            return
        self._is_written = True
        # Through the team alone: workers need not share a disk.
        parts = workers.world.gather(_encode(self.spans))
        if workers.world.rank == 0:
            names = {
                rank: f"node {node} worker {place}"
                for node, ranks in enumerate(workers.ranks_by_node)
                for place, rank in enumerate(ranks)
            }
            spans = [span for part in parts for span in _decode(part)]
            write_trace(self._path, spans, worker_names=names, title=title)

    def collective(
        self, team: str, kind: str, num_bytes: int, start_s: float, end_s: float
    ) -> None:
        """A collective, or a message, is over."""
        self._note(team, collective_name(kind, num_bytes), start_s, end_s)

    def remark(self, text: str) -> None:
        """Something worth reading happened in this step, such as a decision: a span beside it."""
        if self.is_on:
            self._note("step", text, self._step_start_s, self.now())

    def background_work(self, start_s: float, end_s: float) -> None:
        """Work in the background is over."""
        self._note("background", "exchange", start_s, end_s)

    def waited(self, start_s: float, end_s: float) -> None:
        """The training waited, in the middle of its current phase."""
        phase = self._phase
        self._enter("wait", start_s)
        self._enter(phase, end_s)

    def _begin_step(self, num_steps: int, now_s: float) -> None:
        self._num_steps = num_steps
        self.is_on = self._start <= num_steps < self._stop and not self._is_closed
        self._step_start_s = self._phase_start_s = now_s

    def _enter(self, phase: str, now_s: float) -> None:
        if self.is_on:
            self._note("compute", self._phase, self._phase_start_s, now_s)
        self._phase, self._phase_start_s = phase, now_s

    def _note(self, track: str, name: str, start_s: float, end_s: float) -> None:
        self.spans.append(Span(self._rank, track, name, start_s, end_s))


def _encode(spans: list[Span]) -> bytes:
    return zlib.compress(json.dumps([astuple(span) for span in spans]).encode())


def _decode(data: bytes) -> list[Span]:
    return [Span(*fields) for fields in json.loads(zlib.decompress(data))]
