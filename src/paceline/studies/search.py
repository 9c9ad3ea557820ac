"""Looks for the way to train that meets the wishes best and changes training least.

Plain DDP is predicted at every place: cluster, number of nodes, batch. Each such prediction also
says what the same workers would do if nobody waited for anybody, which no strategy can beat. Others
are then tried, those that change training least first, and only where that bound promises more than
predictions can tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.cluster import Cluster
from paceline.kernels.model import KernelModel
from paceline.rehearse import Prediction, predict
from paceline.rehearse.prediction import RESOLUTION
from paceline.steps import Step
from paceline.steps.batches import resized
from paceline.studies.candidates import (
    BUCKET_SIZES,
    PLAIN,
    WIRES,
    Candidate,
    Variant,
    between,
    node_counts,
)
from paceline.studies.wishes import MILLION, Wishes

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a run takes; seconds and dollars of a million samples where no number was given."""

    violation: float
    seconds: float
    dollars: float | None
    device_hours: float

    def objective(self, wishes: Wishes) -> float:
        """What is made small: the price where there is a deadline, else the time."""
        if wishes.deadline_s is None:
            return self.seconds
        return self.device_hours if self.dollars is None else self.dollars


@dataclass(kw_only=True)
class Search:
    """All that was predicted on the way to an advice."""

    step: Step
    wishes: Wishes
    clusters: Sequence[Cluster]
    kernel_model: KernelModel | Path | None = None
    jitter: float | None = None
    progress: Progress
    found: dict[Candidate, Prediction] = field(default_factory=dict)
    _steps: dict[int, Step] = field(default_factory=dict)

    def predicted(self, candidate: Candidate, *, samples: int | None = None) -> Prediction:
        """One candidate; the second time at once."""
        if samples is None and candidate in self.found:
            return self.found[candidate]
        prediction = predict(
            self.step_of(candidate.batch),
            cluster=candidate.cluster,
            strategy=candidate.variant.strategy,
            kernel_model=self.kernel_model,
            jitter=self.jitter,
            samples=samples,
            **candidate.variant.options,
        )
        if samples is None:
            self.found[candidate] = prediction
        return prediction

    def score(self, candidate: Candidate, throughput_per_s: float) -> Score:
        """What the run takes at this throughput."""
        seconds = (self.wishes.samples or MILLION) / throughput_per_s
        price = candidate.cluster.price_per_hour
        dollars = None if price is None else seconds / 3600 * price
        return Score(
            violation=self.wishes.violation(seconds, dollars),
            seconds=seconds,
            dollars=dollars,
            device_hours=seconds / 3600 * candidate.cluster.num_workers,
        )

    def run(self, variants: Sequence[Variant], *, most_global_batch: int) -> Candidate:
        """The best candidate.

        Args:
            variants: What to try after plain DDP, what changes training least first.
            most_global_batch: The largest global batch of a candidate.

        """
        total = 3 + len(variants)
        self.progress("plain DDP", 0, total)
        places = [
            place for own in self.clusters for place in self._plain_places(own, most_global_batch)
        ]
        if not places:
            raise ValueError(self._why_nothing_fits(most_global_batch))
        for number, variant in enumerate(variants, start=1):
            self.progress(variant.strategy, number, total)
            self._try(variant, places)
        self.progress("numbers of nodes", total - 2, total)
        self._refine_nodes()
        self.progress("wire formats and buckets", total - 1, total)
        self._refine_options()
        self.progress("done", total, total)
        return self._best()

    def _best(self) -> Candidate:
        best = self.best()
        assert best is not None  # plain DDP fits somewhere, or the search had ended
        return best

    def best(self, cluster: Cluster | None = None) -> Candidate | None:
        """Of those that cannot be told apart from the best, the one that changes least.

        Args:
            cluster: Only what is predicted there; None is returned where nothing fits.

        """
        scores = {
            candidate: self.score(candidate, prediction.throughput_per_s)
            for candidate, prediction in self.found.items()
            if prediction.fits and (cluster is None or candidate.cluster.name == cluster.name)
        }
        if not scores:
            return None
        least = min(score.violation for score in scores.values())
        # A violation is a ratio less 1.
        allowed = (1 + least) * (1 + RESOLUTION) - 1 if least > 0 else 0.0
        kept = {one: score for one, score in scores.items() if score.violation <= allowed}
        limit = min(score.objective(self.wishes) for score in kept.values()) * (1 + RESOLUTION)
        close = [one for one, score in kept.items() if score.objective(self.wishes) <= limit]
        return min(
            close,
            key=lambda one: (one.change_of_training(), kept[one].objective(self.wishes)),
        )

    def step_of(self, batch: int) -> Step:
        """What is trained, with another batch per worker."""
        if batch not in self._steps:
            self._steps[batch] = resized(self.step, batch)
        return self._steps[batch]

    def _plain_places(self, cluster: Cluster, most_global_batch: int) -> list[Candidate]:
        """Plain DDP on every number of nodes, with every batch that may be and that fits."""
        places = []
        for count in node_counts(cluster):
            own = cluster.with_nodes(count) if cluster.is_uniform else cluster
            most = most_global_batch // own.num_workers
            places += self._batches(own, most)
        return places

    def _batches(self, cluster: Cluster, most: int) -> list[Candidate]:
        """The step's batch and its doubles; smaller ones where that one is too large."""
        places: list[Candidate] = []
        batch = self.step.batch
        while batch > most and batch > 1:
            batch = max(1, batch // 2)
        while 1 <= batch <= most:
            candidate = Candidate(cluster=cluster, batch=batch)
            if self.predicted(candidate).fits:
                places.append(candidate)
                batch *= 2
            elif places or batch == 1:
                break
            else:
                most, batch = batch - 1, batch // 2
        return places

    def _why_nothing_fits(self, most_global_batch: int) -> str:
        if not self.found:
            fewest = min(min(own.workers_per_node) for own in self.clusters)
            return (
                f"A global batch of at most {most_global_batch:,} is below one sample for each of "
                f"the {fewest} workers of a node: it is {fewest - most_global_batch} too few."
            )
        least = min(self.found.values(), key=lambda each: each.memory_bytes)
        missing = least.memory_bytes - least.memory_limit_bytes
        return (
            f"{self.step.title} fits on no device that was asked for: with a batch of "
            f"{least.batch} it takes {least.memory_bytes / 1e9:.1f} GB, and {least.device} has "
            f"{missing / 1e9:.1f} GB less."
        )

    def _try(self, variant: Variant, places: Sequence[Candidate]) -> None:
        """Predict a variant wherever it could be better than what is known."""
        several = [place for place in places if place.cluster.num_nodes > 1]
        for place in sorted(several, key=lambda each: self._bound(each).seconds):
            if self._is_promising(place):
                self.predicted(replace(place, variant=variant))

    def _bound(self, place: Candidate) -> Score:
        """What no strategy can beat there: nobody waits for anybody."""
        plain = self.predicted(replace(place, variant=PLAIN))
        return self.score(place, plain.throughput_per_s / min(1.0, plain.scaling_efficiency))

    def _is_promising(self, place: Candidate) -> bool:
        best = self._best()
        score = self.score(best, self.found[best].throughput_per_s)
        bound = self._bound(place)
        if score.violation > 0:
            return bound.violation < score.violation
        gain = score.objective(self.wishes) > (1 + RESOLUTION) * bound.objective(self.wishes)
        return bound.violation == 0 and gain

    def _refine_nodes(self) -> None:
        """The numbers of nodes between those that were tried."""
        best = self._best()
        cluster = next(own for own in self.clusters if own.name == best.cluster.name)
        if not cluster.is_uniform:
            return
        for count in between(node_counts(cluster), best.cluster.num_nodes):
            own = cluster.with_nodes(count)
            if count * own.node_kinds[0].workers_per_node * best.batch <= best.global_batch:
                self.predicted(Candidate(cluster=own, batch=best.batch, variant=best.variant))

    def _refine_options(self) -> None:
        """Narrower wires, where exchanges may have one, and other buckets, where gradients go."""
        best = self._best()
        if best.cluster.num_workers == 1:
            return
        here = {
            one.variant: each.step_s for one, each in self.found.items() if one.place == best.place
        }
        for variant in sorted(here, key=lambda each: each.staleness):
            is_exchange = variant.staleness > 0
            options: list[dict[str, Any]] = []
            if is_exchange and "wire" not in variant.options:
                options = [{"wire": wire} for wire in WIRES[1:]]
            elif variant == PLAIN:
                options = [{"bucket_bytes": size} for size in BUCKET_SIZES]
            for more in options:
                # What is as fast as the fastest needs no more, nor does what changes training more.
                if is_exchange and here[variant] <= (1 + RESOLUTION) * min(here.values()):
                    return
                if not self._is_promising(best):
                    return
                other = replace(best, variant=variant.replaced(**more))
                here[variant] = min(here[variant], self.predicted(other).step_s)


def plain_candidate(step: Step, cluster: Cluster) -> Candidate:
    """Plain DDP on the whole cluster with the step's own batch."""
    return Candidate(cluster=cluster, batch=step.batch, variant=PLAIN)
