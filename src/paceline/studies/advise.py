"""What to do about it: strategy, periods, wire, batch, buckets, nodes and cluster for a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.cluster import Cluster, load_cluster
from paceline.kernels.model import KernelModel
from paceline.rehearse import Prediction
from paceline.rehearse.mixed import is_mixed, predict_mixed
from paceline.rehearse.prediction import RESOLUTION
from paceline.rehearse.summarise import link_uncertainty
from paceline.steps import Step
from paceline.strategies import Strategy
from paceline.studies.advice_words import (
    attach_line,
    cautions_of,
    launch_commands,
    setting_of,
    way_of,
)
from paceline.studies.candidates import Candidate, Variant, variants_of
from paceline.studies.search import Progress, Search, plain_candidate
from paceline.studies.wishes import Verdict, Wishes, clock, judge, money

_MOST_ALTERNATIVES = 4


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change on the way from plain DDP to what is advised, after those before it."""

    what: str
    prediction: Prediction
    gain: float
    """Samples per second relative to the line before."""
    over_plain: float
    """Samples per second relative to plain DDP."""
    low: float
    high: float
    """The range of ``over_plain`` that two of three measurements should fall into."""
    dollars_per_million_samples: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = self.prediction
        return {
            "what": self.what,
            "step_s": found.step_s,
            "throughput_per_s": found.throughput_per_s,
            "scaling_efficiency": found.scaling_efficiency,
            "gain": self.gain,
            "over_plain": self.over_plain,
            "over_plain_range": [self.low, self.high],
            "dollars_per_million_samples": self.dollars_per_million_samples,
        }


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How to train, what that brings over plain DDP, and what it may cost."""

    model: str
    candidate: Candidate
    prediction: Prediction
    """Of the advised run; with its ``run`` where samples were given."""
    plain: Prediction
    changes: tuple[Change, ...]
    """From plain DDP, which is the first, to what is advised, which is the last."""
    alternatives: tuple[Change, ...]
    """Other strategies at the same place, the best on other clusters, plain DDP on one node."""
    cautions: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    attach: str
    commands: dict[str, str]
    notes: tuple[str, ...]
    num_predictions: int

    @property
    def setting(self) -> str:
        """What is advised, in one phrase."""
        return setting_of(self.candidate)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        chosen = self.candidate
        return {
            "model": self.model,
            "setting": self.setting,
            "cluster": chosen.cluster.name,
            "nodes": chosen.cluster.num_nodes,
            "workers": chosen.cluster.num_workers,
            "batch": chosen.batch,
            "global_batch": chosen.global_batch,
            "strategy": chosen.variant.strategy,
            "options": dict(chosen.variant.options),
            "prediction": self.prediction.to_dict(),
            "plain": self.plain.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
            "alternatives": [change.to_dict() for change in self.alternatives],
            "cautions": list(self.cautions),
            "wishes": [verdict.to_dict() for verdict in self.verdicts],
            "attach": self.attach,
            "commands": dict(self.commands),
            "notes": list(self.notes),
            "num_predictions": self.num_predictions,
        }


def advise(
    step: Step,
    *,
    cluster: str | Path | Cluster | Sequence[str | Path | Cluster],
    nodes: int | None = None,
    strategies: Sequence[str | Strategy] | None = None,
    max_global_batch: int | None = None,
    samples: int | None = None,
    deadline_s: float | None = None,
    budget_dollars: float | None = None,
    kernel_model: KernelModel | Path | None = None,
    jitter: float | None = None,
    progress: Progress | None = None,
) -> Advice:
    """How to train a step: strategy, periods, wire, batch, buckets, nodes and cluster.

    Without a deadline the fastest way is advised, with one the cheapest that meets it. Among ways
    that predictions cannot tell apart, the one that changes training least is preferred; plain DDP
    changes nothing.

    Args:
        step: What is trained, with the batch per worker of today.
        cluster: One cluster or several: presets' names, TOML files, or ``Cluster`` objects. Plain
            DDP on the whole of the first is what gains are relative to.
        nodes: The most nodes to use; by default all that a cluster has.
        strategies: What may be advised beside plain DDP: names, of which several periods are tried,
            or objects such as ``Daso(period=8)``, which are tried as they are.
        max_global_batch: The largest global batch that training stands; by default what plain DDP
            on the whole of the first cluster has.
        samples: Samples of the whole run, all epochs together.
        deadline_s: Seconds that the run may take.
        budget_dollars: US dollars that the run may cost.
        kernel_model: A kernel model, or a file that ``paceline fit`` wrote.
        jitter: How much a worker's time varies; by default the cluster's own figure.
        progress: Called with what is done, how much of it, and the total.

    Returns:
        The advice; ``to_dict()`` has it as plain data.

    """
    wishes = Wishes(
        samples=samples,
        max_global_batch=max_global_batch,
        deadline_s=deadline_s,
        budget_dollars=budget_dollars,
    )
    clusters = _clusters(cluster, nodes, needs_prices=budget_dollars is not None)
    search = Search(
        step=step,
        wishes=wishes,
        clusters=clusters,
        kernel_model=kernel_model,
        jitter=jitter,
        progress=progress or _silent,
    )
    plain = plain_candidate(step, clusters[0])
    variants = variants_of(strategies)
    best = search.run(variants, most_global_batch=max_global_batch or plain.global_batch)
    found = search.predicted(best, samples=samples)
    steps = None if found.run is None else found.run.num_steps
    return Advice(
        model=step.title,
        candidate=best,
        prediction=found,
        plain=search.predicted(plain, samples=samples),
        changes=tuple(_changes(search, plain, best)),
        alternatives=tuple(_alternatives(search, plain, best)),
        cautions=tuple(cautions_of(best, plain)),
        verdicts=tuple(_verdicts(search, found)),
        attach=attach_line(best.variant, total_steps=steps),
        commands=launch_commands(best.cluster),
        notes=tuple(
            _notes(search, found, best=best, plain=plain, max_global_batch=max_global_batch)
        ),
        num_predictions=len(search.found),
    )


def _silent(what: str, done: int, total: int) -> None:
    pass


def _clusters(
    given: str | Path | Cluster | Sequence[str | Path | Cluster],
    nodes: int | None,
    *,
    needs_prices: bool,
) -> list[Cluster]:
    several = [given] if isinstance(given, str | Path | Cluster) else list(given)
    if not several:
        raise ValueError("Give at least one cluster.")
    found: list[Cluster] = []
    for one in several:
        own = one if isinstance(one, Cluster) else load_cluster(one)
        if any(own.name == other.name for other in found):
            raise ValueError(f"Two clusters are named {own.name}: rename one of them.")
        if needs_prices and own.price_per_hour is None:
            raise ValueError(
                f"A budget needs prices, and {own.name} has none: give its nodes a price_per_hour."
            )
        found.append(own if nodes is None else own.with_nodes(nodes))
    return found


def _changes(search: Search, plain: Candidate, best: Candidate) -> list[Change]:
    """From plain DDP to what is advised, one change at a time."""
    lines = [("plain DDP", plain)]

    def then(what: str, candidate: Candidate) -> None:
        if candidate != lines[-1][1]:
            lines.append((what, candidate))

    own = next(each for each in search.clusters if each.name == best.cluster.name)
    then(f"on {own.name}", replace(plain, cluster=own))
    then(f"{best.cluster.num_nodes} of {own.num_nodes} nodes", replace(plain, cluster=best.cluster))
    then(f"batch {best.batch} per worker", replace(best, variant=plain.variant))
    chosen = best.variant
    default = Variant(strategy=chosen.strategy)
    wide = Variant(
        strategy=chosen.strategy,
        options={key: chosen.options[key] for key in ("period", "delay") if key in chosen.options},
    )
    if (default.period, default.delay) != (wide.period, wide.delay):
        then(way_of(default), replace(best, variant=default))
    then(way_of(wide), replace(best, variant=wide))
    then(way_of(chosen), best)
    found: list[Change] = []
    for what, candidate in lines:
        found.append(_change(search, plain, what, candidate, found[-1] if found else None))
    return found


def _change(
    search: Search, plain: Candidate, what: str, candidate: Candidate, before: Change | None
) -> Change:
    own, base = search.predicted(candidate), search.predicted(plain)
    ratio = own.throughput_per_s / base.throughput_per_s
    spread = 0.0 if candidate == plain else _spread(own, base, candidate, plain)
    price = candidate.cluster.price_per_hour
    return Change(
        what=what,
        prediction=own,
        gain=1.0 if before is None else own.throughput_per_s / before.prediction.throughput_per_s,
        over_plain=ratio,
        low=ratio * max(0.0, 1 - spread),
        high=ratio * (1 + spread),
        dollars_per_million_samples=(
            None if price is None else price / 3600 / own.throughput_per_s * 1e6
        ),
    )


def _spread(own: Prediction, base: Prediction, candidate: Candidate, plain: Candidate) -> float:
    """One standard deviation of the ratio of two throughputs, relative.

    On the same devices and links most of the error is shared: kernels that are too slow by x, and
    links by y, make a step c(1 + x) + e(1 + y). Of the logarithm of a ratio of two such steps only
    the difference s of their exposed shares e / (c + e) is left: s(y - x). Predicted ratios of
    strategies were off by as much as ``RESOLUTION`` besides (docs/evidence/steps.md).
    """
    if candidate.cluster.name != plain.cluster.name:
        return float(np.hypot(own.uncertainty, base.uncertainty))
    shares = [each.exposed_communication_s / each.step_s for each in (own, base)]
    link = link_uncertainty(plain.cluster)
    alone = max(0.0, 1 - shares[1])
    kernels = np.sqrt(max(0.0, base.uncertainty**2 - (shares[1] * link) ** 2)) / max(alone, 1e-9)
    return float(np.hypot(abs(shares[0] - shares[1]) * np.hypot(kernels, link), RESOLUTION))


def _alternatives(search: Search, plain: Candidate, best: Candidate) -> list[Change]:
    """The best of each other strategy here, of each other cluster, and plain DDP on one node."""
    quickest: dict[str, Candidate] = {}
    for candidate, prediction in search.found.items():
        if candidate.place != best.place or candidate == best or not prediction.fits:
            continue
        known = quickest.get(candidate.variant.strategy)
        if known is None or prediction.step_s < search.found[known].step_s:
            quickest[candidate.variant.strategy] = candidate
    ordered = sorted(quickest.values(), key=lambda each: search.found[each].step_s)
    found = [
        _change(search, plain, way_of(candidate.variant), candidate, None)
        for candidate in ordered[:_MOST_ALTERNATIVES]
    ]
    for own in search.clusters:
        if own.name != best.cluster.name:
            elsewhere = search.best(own)
            if elsewhere is not None and elsewhere != plain:
                found.append(_change(search, plain, setting_of(elsewhere), elsewhere, None))
    single = plain.cluster.with_nodes(1) if plain.cluster.is_uniform else plain.cluster
    alone = replace(plain, cluster=single)
    if alone in search.found and alone not in (plain, best):
        found.append(_change(search, plain, "plain DDP on one node", alone, None))
    return found


def _verdicts(search: Search, found: Prediction) -> list[Verdict]:
    wishes, run = search.wishes, found.run
    if run is None:
        return []
    upper = 1 + found.uncertainty
    verdicts = []
    if wishes.deadline_s is not None:
        verdicts.append(judge("deadline", wishes.deadline_s, run.seconds, run.seconds * upper))
    if wishes.budget_dollars is not None:
        assert run.dollars is not None
        verdicts.append(judge("budget", wishes.budget_dollars, run.dollars, run.dollars * upper))
    return verdicts


def _notes(
    search: Search,
    found: Prediction,
    *,
    best: Candidate,
    plain: Candidate,
    max_global_batch: int | None,
) -> list[str]:
    notes = list(found.warnings)
    wishes = search.wishes
    base = search.predicted(plain)
    if not base.fits:
        notes.append(
            f"Plain DDP with a batch of {base.batch} does not fit into {base.device}'s memory; "
            "gains are relative to it as if it did."
        )
    scores = [
        search.score(one, each.throughput_per_s) for one, each in search.found.items() if each.fits
    ]
    both = wishes.deadline_s is not None and wishes.budget_dollars is not None
    if both and search.score(best, found.throughput_per_s).violation > 0:
        assert wishes.deadline_s is not None and wishes.budget_dollars is not None
        fastest = min(scores, key=lambda each: each.seconds)
        cheapest = min(scores, key=lambda each: each.dollars or 0.0)
        assert fastest.dollars is not None and cheapest.dollars is not None
        notes.append(
            f"Both wishes together cannot be met. The fastest run found takes "
            f"{clock(fastest.seconds)} for {money(fastest.dollars)}; the cheapest costs "
            f"{money(cheapest.dollars)} and takes {clock(cheapest.seconds)}."
        )
    if max_global_batch is None:
        notes.append(
            "The global batch was kept at or below plain DDP's; --max-global-batch allows a larger "
            "one, with which workers exchange less per sample."
        )
    # Whether shares by speed help, and a slow node hurts, as one trains then: it may hurt plain DDP
    # alone, which waits for it at every step.
    if is_mixed(best.cluster):
        mixed = predict_mixed(
            search.step_of(best.batch),
            cluster=best.cluster,
            strategy=best.variant.strategy,
            kernel_model=search.kernel_model,
            jitter=search.jitter,
            **best.variant.options,
        )
        notes.extend(mixed.notes())
    return notes
