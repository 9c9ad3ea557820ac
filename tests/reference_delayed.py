"""Strategies whose exchanges are merged some steps after their start, as simply as possible."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reference import Game, Nesterov, Player, Rule, Turns, Values, average_statistics, mean_of


class Flight:
    """What every player had when an exchange started, and what the exchange will bring."""

    def __init__(self, game: Game, turns: Turns, start: int, places: range, weighting: str) -> None:
        self.start = start
        self.places = places
        speakers, weights = turns.next_speakers(), game.weights(weighting)
        self.mean = mean_of(
            [player.values()[places.start : places.stop] for player in speakers], weights
        )
        self.statistics_mean = mean_of([player.statistics() for player in speakers], weights)
        self.sent = {player: player.values() for player in game.players}
        self.statistics_sent = {player: player.statistics() for player in game.players}

    def land(self, player: Player, values: Values, step: int) -> None:
        """Set this flight's parameters; statistics keep what they learnt since the start."""
        now = player.values()
        now[self.places.start : self.places.stop] = values
        player.set_values(now)
        if step == self.start:
            player.set_statistics(self.statistics_mean)
            return
        player.set_statistics(
            [
                corrected_statistic(*triple)
                for triple in zip(
                    self.statistics_mean,
                    player.statistics(),
                    self.statistics_sent[player],
                    strict=True,
                )
            ]
        )


def corrected_statistic(mean: torch.Tensor, own: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
    """mean + (own - sent); but a sum on the other side of zero than both could be no variance."""
    result = mean + (own - sent)
    for i in range(result.numel()):
        if (mean[i] > 0 and own[i] > 0 and result[i] < 0) or (
            mean[i] < 0 and own[i] < 0 and result[i] > 0
        ):
            result[i] = mean[i] if abs(mean[i]) < abs(own[i]) else own[i]
    return result


class StreamingDiloco(Rule):
    """Fragments in turn, merged ``delay`` steps after their start, half-way."""

    def __init__(
        self,
        game: Game,
        *,
        period: int,
        fragments: int,
        delay: int,
        keep: float,
        outer_lr: float,
        outer_momentum: float,
        weighting: str = "workers",
    ) -> None:
        super().__init__(game)
        self.weighting = weighting
        self.period = period
        self.delay = delay
        self.keep = keep
        self.turns = Turns(game)
        values = game.players[0].values()
        self.fragments = cut([v.numel() for v in values], fragments)
        self.outers = [
            Nesterov(values[f.start : f.stop], outer_lr, outer_momentum) for f in self.fragments
        ]
        self.flights: dict[int, Flight] = {}

    def after_step(self, step: int) -> None:
        if self.game.num_nodes == 1:
            return
        for index, flight in sorted(self.flights.items()):
            if step - flight.start == self.delay:
                self.merge(index, step)
        for index, places in enumerate(self.fragments):
            # Staggered: the first at a share of the period, the last at its end.
            first = (index + 1) * self.period // len(self.fragments)
            if step >= first and (step - first) % self.period == 0:
                if index in self.flights:
                    self.merge(index, step)
                self.flights[index] = Flight(self.game, self.turns, step, places, self.weighting)
                if self.delay == 0:
                    self.merge(index, step)

    def merge(self, index: int, step: int) -> None:
        flight = self.flights.pop(index)
        theta = self.outers[index].step(flight.mean)
        for player in self.game.players:
            own = player.values()[flight.places.start : flight.places.stop]
            mixed = [self.keep * x + (1 - self.keep) * t for x, t in zip(own, theta, strict=True)]
            flight.land(player, mixed, step)

    def finish(self, step: int) -> None:
        for index in sorted(self.flights):
            self.merge(index, step)
        mean = self.game.mean_of_nodes(self.weighting)
        for player in self.game.players:
            player.set_values(mean)
        average_statistics(self.game)


def cut(sizes: Sequence[int], count: int) -> list[range]:
    """Runs of about equal size: one ends where its share of all values is reached or passed."""
    borders = [0]
    for k in range(1, count):
        border = next(i for i in range(len(sizes) + 1) if sum(sizes[:i]) * count >= sum(sizes) * k)
        # None is empty: neither this one nor those that follow.
        borders.append(min(max(border, borders[-1] + 1), len(sizes) - (count - k)))
    return [range(a, b) for a, b in zip(borders, [*borders[1:], len(sizes)], strict=True)]


class Daso(Rule):
    """DASO with ``late="wait"``: B and W as given, three phases, changes on a plateau."""

    def __init__(
        self,
        game: Game,
        *,
        period: int,
        delay: int,
        merge: str,
        max_period: int = 8,
        warmup_steps: int = 4,
        cooldown_steps: int = 4,
        total_steps: int | None = None,
        threshold: float = 0.05,
        patience: int = 2,
        weighting: str = "workers",
    ) -> None:
        super().__init__(game)
        self.weighting = weighting
        self.b, self.w = period, delay
        self.max_b = max_period
        self.has_delay = delay > 0
        self.merge_name = merge
        self.warmup = warmup_steps
        # The last step is blocking in any case.
        last = total_steps if total_steps is not None else 10**9
        self.last_step = last
        self.cooldown_from = last - max(1, cooldown_steps) + 1
        self.threshold = threshold
        self.patience = patience
        self.best: float | None = None
        self.bad_reports = 0
        self.turns = Turns(game)
        self.flight: Flight | None = None
        self.last_start = 0
        self.starts: list[int] = []
        self.merges: list[tuple[int, int]] = []

    def after_step(self, step: int) -> None:
        if self.game.num_nodes > 1:
            self.exchange(step)
        if step == self.last_step:
            average_statistics(self.game)

    def exchange(self, step: int) -> None:
        is_blocking = step <= self.warmup or step >= self.cooldown_from
        w = 0 if is_blocking else self.w
        # A change of W holds for what is under way as well.
        if self.flight and step - self.flight.start >= w:
            self.merge(step)
        if is_blocking or step - self.last_start >= self.b:
            if self.flight:
                self.merge(step)
            self.last_start = step
            self.starts.append(step)
            everything = range(len(self.game.players[0].trained))
            self.flight = Flight(self.game, self.turns, step, everything, self.weighting)
            if w == 0:
                self.merge(step)

    def merge(self, step: int) -> None:
        flight = self.flight
        assert flight is not None
        self.flight = None
        w, p = step - flight.start, self.game.num_nodes
        self.merges.append((flight.start, step))
        for player in self.game.players:
            own = player.values()
            if w == 0:
                new = flight.mean
            elif self.merge_name == "stale":
                new = [
                    (2 * w * x + p * mean) / (2 * w + p)
                    for x, mean in zip(own, flight.mean, strict=True)
                ]
            else:
                new = [
                    mean + (x - sent)
                    for mean, x, sent in zip(flight.mean, own, flight.sent[player], strict=True)
                ]
            flight.land(player, new, step)

    def report(self, metric: float) -> None:
        if self.best is None or metric < self.best - self.threshold * abs(self.best):
            self.best = metric
            self.bad_reports = 0
            return
        self.bad_reports += 1
        if self.bad_reports <= self.patience:
            return
        self.bad_reports = 0
        if self.b == 1:
            self.b = self.max_b
            self.w = max(1, self.max_b // 4)
        else:
            self.b = self.b // 2
            self.w = min(self.b, max(1, self.w // 2))
        if not self.has_delay:
            self.w = 0

    def finish(self, step: int) -> None:
        if self.flight is not None:
            self.merge(step)
        mean = self.game.mean_of_nodes(self.weighting)
        for player in self.game.players:
            player.set_values(mean)
        average_statistics(self.game)
