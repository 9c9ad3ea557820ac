"""Answers the explorer's page at once, and times ahead what it may ask next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paceline.cluster import Cluster, load_cluster, preset_names
from paceline.cluster.devices import device_names
from paceline.rehearse.setting import find_cluster, find_kernel_models
from paceline.steps import Step
from paceline.strategies import make_strategy
from paceline.studies.axes import AXES, make_axes
from paceline.studies.explorer.answer import answer_of, waiting_answer
from paceline.studies.explorer.question import Question, Sliders
from paceline.studies.explorer.scene import Scene, Slab

DEFAULT_STRATEGIES = ("sync", "local-sgd", "daso")
_FACTORS = tuple(float(factor) for factor in np.geomspace(0.25, 4.0, 9))
_LINK_FACTORS = tuple(float(factor) for factor in np.geomspace(1 / 16, 16.0, 17))
_AT_ONCE_S = 0.04  # a play that is this short is waited for; longer ones are estimated meanwhile
_LAST_JOB_S = 0.5

Job = Callable[[], None]
Progress = Callable[[str, int, int], None]


class Explorer:
    """One step on any built-in cluster and device, under some strategies.

    Args:
        step: What is trained.
        cluster: The cluster to begin with: a preset's name, a TOML file, or a ``Cluster``.
        strategies: Strategies to switch between.
        workers: Numbers of workers, or a range such as ``"1:4096"``.
        kernel_model: A file that ``paceline fit`` wrote, for the cluster's own devices.
    """

    def __init__(
        self,
        step: Step,
        *,
        cluster: str | Path | Cluster,
        strategies: Sequence[str] = DEFAULT_STRATEGIES,
        workers: str | Sequence[int] | None = None,
        kernel_model: Path | None = None,
    ) -> None:
        for name in strategies:
            make_strategy(name)  # one that there is not is told before work begins
        first = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
        self.title = step.title
        self.strategies = tuple(dict.fromkeys(strategies))
        self.clusters = {first.name: first, **_others(first.name)}
        self._step = step
        self._workers = workers
        self._kernel_model = kernel_model
        self._steps: dict[int, Step] = {}
        self._scenes: dict[tuple[str, str], Scene] = {}
        self._problems: dict[tuple[str, str], str] = {}
        self._asked = threading.Condition()
        self._is_closed = False
        self._latest = Question(cluster=first.name, device="", strategy=self.strategies[0])
        self._axes_of(first)  # an unequal cluster or a bad range is told now
        self._thread = threading.Thread(target=self._work, name="explorer", daemon=True)

    @property
    def first_question(self) -> Question:
        """The cluster as it is, with the first strategy."""
        return Question(cluster=next(iter(self.clusters)), device="", strategy=self.strategies[0])

    def start(self, progress: Progress | None = None) -> None:
        """Time the first view, then go on in the background.

        Args:
            progress: Called with what is done, how much of it, and the total.
        """
        report = progress or (lambda what, done, total: None)
        question = self.first_question
        steps = ("capture the step", "record what the first strategy does", "what limits it")
        for place, (what, job) in enumerate(zip(steps, self._first_jobs(question), strict=True)):
            report(what, place, len(steps))
            job()
        report("done", len(steps), len(steps))
        self._thread.start()

    def close(self) -> bool:
        """Time nothing more; whether the last job has ended, which is waited for a moment."""
        with self._asked:
            self._is_closed = True
            self._asked.notify()
        if self._thread.ident is not None:
            self._thread.join(_LAST_JOB_S)
        return not self._thread.is_alive()

    def answer(self, question: Question) -> dict[str, Any]:
        """What the page shows; estimated, and marked so, where it is not timed yet.

        Args:
            question: The state of the page. ValueError if it names what there is not.
        """
        self._check(question)
        place = (question.cluster, question.device)
        scene = self._scenes.get(place)
        if scene is not None and question.sliders and not question.sliders.fits(scene.axes):
            raise ValueError("a slider is beyond its end")
        with self._asked:
            self._latest = question
            self._asked.notify()
        problem = self._problems.get(place)
        if scene is None or not scene.play_s or problem:
            return waiting_answer(question, problem)
        sliders = self._sliders(scene, question)
        if sliders.batch in scene.bad_batches:
            return waiting_answer(question, scene.bad_batches[sliders.batch])
        slab = _slab(question.strategy, sliders)
        if not scene.knows(slab):
            scene.prepare_at_once(slab, within_s=_AT_ONCE_S)
        return answer_of(scene, question, sliders, self.strategies)

    def sliders_of(self, scene: Scene) -> Sliders:
        """Where the sliders are for the cluster and the step as they are."""
        kind = scene.cluster.node_kinds[0]
        own = {
            "batch": self._step.batch,
            "arithmetic": 1.0,
            "memory_bandwidth": 1.0,
            "link": kind.between.bandwidth_bytes_per_s,
            "workers": scene.cluster.num_workers,
        }
        return Sliders(**{name: _nearest(scene.axes.values(name), own[name]) for name in AXES})

    def _sliders(self, scene: Scene, question: Question) -> Sliders:
        asked = question.sliders
        return asked if asked and asked.fits(scene.axes) else self.sliders_of(scene)

    def _check(self, question: Question) -> None:
        known: dict[str, Sequence[str]] = {
            "cluster": tuple(self.clusters),
            "device": ("", *device_names()),
            "strategy": self.strategies,
        }
        for name, values in known.items():
            if getattr(question, name) not in values:
                raise ValueError(f"there is no such {name}")

    def _work(self) -> None:
        """Time what the latest question needs, then what the next one may need."""
        while not self._is_closed:
            question = self._latest
            job = next(self._wishes(question), None)
            if job is not None:
                self._do(job, question)
                continue
            with self._asked:
                if self._latest is question and not self._is_closed:
                    self._asked.wait()

    def _do(self, job: Job, question: Question) -> None:
        try:
            job()
        except Exception as problem:
            # The page is told, and another cluster or device can still be chosen. When the
            # process ends, what a job needs may be gone before it.
            if not self._is_closed:
                self._problems[question.cluster, question.device] = str(problem) or repr(problem)

    def _first_jobs(self, question: Question) -> Iterator[Job]:
        yield partial(self._build, question)
        scene = self._scenes[question.cluster, question.device]
        sliders = self.sliders_of(scene)
        yield partial(scene.prepare, _slab(question.strategy, sliders))
        yield partial(scene.prepare_gains, question.strategy, sliders)

    def _wishes(self, question: Question) -> Iterator[Job]:
        """Jobs that are not done yet, the most wanted first."""
        place = (question.cluster, question.device)
        if place in self._problems:
            return
        scene = self._scenes.get(place)
        if scene is None:
            yield partial(self._build, question)
            return
        sliders = self._sliders(scene, question)
        if sliders.batch in scene.bad_batches:
            return
        if not scene.has_batch(sliders.batch):
            yield partial(scene.prepare_batch, sliders.batch)
        names = [question.strategy, *(n for n in self.strategies if n != question.strategy)]
        usable = [name for name in names if name not in scene.left_out]
        for name in usable:
            if not scene.knows(_slab(name, sliders)):
                yield partial(self._prepare, scene, _slab(name, sliders))
            elif name == question.strategy and scene.gains(name, sliders) is None:
                yield partial(scene.prepare_gains, name, sliders)
        for batch in range(len(scene.axes.batch)):
            if not scene.has_batch(batch) and batch not in scene.bad_batches:
                yield partial(scene.prepare_batch, batch)
        for name in usable:
            for slab in _neighbours(_slab(name, sliders), scene):
                if not scene.knows(slab):
                    yield partial(self._prepare, scene, slab)

    def _prepare(self, scene: Scene, slab: Slab) -> None:
        try:
            scene.prepare(slab)
        except ValueError as problem:  # a strategy that this cluster cannot run
            scene.left_out[slab.strategy] = str(problem)

    def _build(self, question: Question) -> None:
        place = (question.cluster, question.device)
        device = question.device or None
        chosen = self.clusters[question.cluster]
        changed = find_cluster(chosen, device=device, nodes=None, workers_per_node=None)
        assert changed is not None
        is_first = place == (self.first_question.cluster, "")
        models = find_kernel_models(changed, device, self._kernel_model if is_first else None)
        scene = Scene(
            step=self._step,
            cluster=changed,
            kernel_model=models[changed.node_kinds[0].device.name],
            axes=self._axes_of(changed),
            steps=self._steps,
        )
        own = self.sliders_of(scene).batch
        scene.prepare_batch(own)
        if own in scene.bad_batches:
            raise ValueError(scene.bad_batches[own])
        self._scenes[place] = scene

    def _axes_of(self, cluster: Cluster) -> Any:
        link = cluster.node_kinds[0].between.bandwidth_bytes_per_s
        return make_axes(
            cluster,
            self._step.batch,
            arithmetic=_FACTORS,
            memory_bandwidth=_FACTORS,
            link=[link * factor for factor in _LINK_FACTORS],
            workers=self._workers,
        )


def _others(first: str) -> Mapping[str, Cluster]:
    """Built-in clusters of equal nodes."""
    loaded = {name: load_cluster(name) for name in preset_names() if name != first}
    return {name: each for name, each in loaded.items() if len(each.node_kinds) == 1}


def _slab(strategy: str, sliders: Sliders) -> Slab:
    return Slab(strategy, sliders.batch, sliders.arithmetic, sliders.memory_bandwidth)


def _neighbours(slab: Slab, scene: Scene) -> Iterator[Slab]:
    """What one slider alone can reach, the nearest first."""
    for place in _around(slab.arithmetic, len(scene.axes.arithmetic)):
        yield slab._replace(arithmetic=place)
    for place in _around(slab.memory_bandwidth, len(scene.axes.memory_bandwidth)):
        yield slab._replace(memory_bandwidth=place)
    for place in _around(slab.batch, len(scene.axes.batch)):
        if scene.has_batch(place):
            yield slab._replace(batch=place)


def _around(own: int, count: int) -> list[int]:
    return sorted(range(count), key=lambda place: abs(place - own))


def _nearest(values: Sequence[float], wanted: float) -> int:
    return min(range(len(values)), key=lambda place: abs(np.log(values[place] / wanted)))
