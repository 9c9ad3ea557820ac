"""Every strategy once more, as simply as possible: one process plays all workers in sequence.

Written from the papers' formulas and the documents, for comparison with the real thing. It shares
no code with the package: models are copied, gradients and parameters are averaged in plain loops.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from scipy.fft import dct, idct
from torch import nn
from torch.optim import Optimizer

Values = list[torch.Tensor]


class Player:
    """One worker: its model, its optimizer, its place."""

    def __init__(self, rank: int, model: nn.Module, optimizer: Optimizer) -> None:
        self.rank = rank
        self.model = model
        self.optimizer = optimizer

    @property
    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def values(self) -> Values:
        return [p.detach().clone() for p in self.trained]

    def statistics(self) -> Values:
        """The buffers that can be averaged."""
        return [b.detach().clone() for b in self.model.buffers() if b.is_floating_point()]

    def set_values(self, values: Values) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.trained, values, strict=True):
                parameter.copy_(value)

    def set_statistics(self, values: Values) -> None:
        buffers = [b for b in self.model.buffers() if b.is_floating_point()]
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)


class Game:
    """All workers of a job, by node."""

    def __init__(
        self, node_sizes: Sequence[int], build: Callable[[], tuple[nn.Module, Optimizer]]
    ) -> None:
        self.players = [Player(rank, *build()) for rank in range(sum(node_sizes))]
        rest = list(self.players)
        self.nodes = [[rest.pop(0) for _ in range(size)] for size in node_sizes]

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    def weights(self, weighting: str) -> list[int]:
        """What each node counts: its workers, or as much as any other."""
        return [len(node) if weighting == "workers" else 1 for node in self.nodes]

    def mean_of_nodes(self, weighting: str) -> Values:
        """The nodes' mean parameters; a node's workers are equal."""
        return mean_of([node[0].values() for node in self.nodes], self.weights(weighting))


def mean_of(many: Sequence[Values], weights: Sequence[int] | None = None) -> Values:
    """The mean of each tensor; with weights Σ wᵢ·xᵢ / Σ wᵢ."""
    own = [1] * len(many) if weights is None else list(weights)
    means = []
    for parts in zip(*many, strict=True):
        weighted = [weight * part for weight, part in zip(own, parts, strict=True)]
        means.append(sum(weighted[1:], weighted[0]) / sum(own))
    return means


def average_gradients(team: Sequence[Player]) -> None:
    """Where nobody has a gradient there stays none; who has none counts as zero."""
    for parameters in zip(*(player.trained for player in team), strict=True):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            mean = sum(gradients[1:], gradients[0]) / len(team)
            for parameter in parameters:
                parameter.grad = mean.clone()


class Rule:
    """A strategy's part in the loop of :func:`play`. By default nodes train on their own."""

    def __init__(self, game: Game) -> None:
        self.game = game

    def gradient_teams(self, step: int) -> list[list[Player]]:
        return self.game.nodes

    def before_step(self) -> None: ...

    def after_step(self, step: int) -> None: ...

    def report(self, metric: float) -> None: ...

    def finish(self, step: int) -> None: ...


def play(
    rule: Rule,
    loss: Callable[[nn.Module, int, int], torch.Tensor],
    num_steps: int,
    *,
    observe: Callable[[nn.Module], torch.Tensor],
    reports: Mapping[int, float],
) -> list[list[torch.Tensor]]:
    """Train; what ``observe`` sees of every worker after every step, and after the end."""
    players = rule.game.players
    seen = []
    for step in range(1, num_steps + 1):
        for player in players:
            player.optimizer.zero_grad()
            torch.autograd.backward(loss(player.model, step, player.rank))
        for team in rule.gradient_teams(step):
            average_gradients(team)
        rule.before_step()
        for player in players:
            player.optimizer.step()
        rule.after_step(step)
        if step in reports:
            rule.report(reports[step])
        seen.append([observe(player.model) for player in players])
    rule.finish(num_steps)
    seen.append([observe(player.model) for player in players])
    return seen


class Sync(Rule):
    """All gradients and statistics are averaged over all workers; so is sync-hierarchical."""

    def gradient_teams(self, step: int) -> list[list[Player]]:
        return [self.game.players]

    def before_step(self) -> None:
        average_statistics(self.game)


def average_statistics(game: Game) -> None:
    mean = mean_of([player.statistics() for player in game.players])
    for player in game.players:
        player.set_statistics(mean)


class Turns:
    """Who speaks for a node: each local index that every node has, one exchange each."""

    def __init__(self, game: Game) -> None:
        self._nodes = game.nodes
        self._num_turns = 0

    def next_speakers(self) -> list[Player]:
        index = self._num_turns % min(len(node) for node in self._nodes)
        self._num_turns += 1
        return [node[index] for node in self._nodes]


class LocalSgd(Rule):
    """Every ``period`` steps, parameters become the nodes' mean."""

    def __init__(self, game: Game, *, period: int, weighting: str = "workers") -> None:
        super().__init__(game)
        self.period = period
        self.weighting = weighting
        self.turns = Turns(game)

    def after_step(self, step: int) -> None:
        if self.game.num_nodes > 1 and step % self.period == 0:
            self.average()

    def average(self) -> None:
        speakers, weights = self.turns.next_speakers(), self.game.weights(self.weighting)
        mean = self.agreed_value(mean_of([player.values() for player in speakers], weights))
        statistics = mean_of([player.statistics() for player in speakers], weights)
        for player in self.game.players:
            player.set_values(mean)
            player.set_statistics(statistics)

    def agreed_value(self, mean: Values) -> Values:
        return mean

    def finish(self, step: int) -> None:
        # Right after an exchange all are equal, and the mean changes nothing.
        mean = self.game.mean_of_nodes(self.weighting)
        for player in self.game.players:
            player.set_values(mean)
        average_statistics(self.game)


class PostLocalSgd(LocalSgd):
    """Synchronous for ``sync_steps`` steps; then every ``period`` steps from there."""

    def __init__(self, game: Game, *, period: int, sync_steps: int) -> None:
        super().__init__(game, period=period)
        self.sync_steps = sync_steps

    def gradient_teams(self, step: int) -> list[list[Player]]:
        return [self.game.players] if step <= self.sync_steps else self.game.nodes

    def after_step(self, step: int) -> None:
        if step > self.sync_steps:
            super().after_step(step - self.sync_steps)


class Nesterov:
    """g = θ - mean; v = μ·v + g; θ = θ - lr·(g + μ·v)."""

    def __init__(self, theta: Values, lr: float, momentum: float) -> None:
        self.theta = theta
        self.velocity = [torch.zeros_like(t) for t in theta]
        self.lr = lr
        self.momentum = momentum

    def step(self, mean: Values) -> Values:
        for i in range(len(self.theta)):
            gradient = self.theta[i] - mean[i]
            self.velocity[i] = self.momentum * self.velocity[i] + gradient
            direction = gradient + self.momentum * self.velocity[i]
            self.theta[i] = self.theta[i] - self.lr * direction
        return [t.clone() for t in self.theta]


class Diloco(LocalSgd):
    """Every ``period`` steps, parameters become the outer optimizer's."""

    def __init__(self, game: Game, *, period: int, outer_lr: float, outer_momentum: float) -> None:
        super().__init__(game, period=period)
        self.outer = Nesterov(game.players[0].values(), outer_lr, outer_momentum)

    def agreed_value(self, mean: Values) -> Values:
        return self.outer.step(mean)


class SlowMo(LocalSgd):
    """u = β·u + (θ - mean)/γ; θ = θ - α·γ·u, with γ the inner learning rate."""

    def __init__(self, game: Game, *, period: int, slow_lr: float, slow_momentum: float) -> None:
        super().__init__(game, period=period)
        self.theta = game.players[0].values()
        self.momentum = [torch.zeros_like(t) for t in self.theta]
        self.alpha, self.beta = slow_lr, slow_momentum

    def agreed_value(self, mean: Values) -> Values:
        gamma = self.game.players[0].optimizer.param_groups[0]["lr"]
        for i in range(len(self.theta)):
            self.momentum[i] = self.beta * self.momentum[i] + (self.theta[i] - mean[i]) / gamma
            self.theta[i] = self.theta[i] - self.alpha * gamma * self.momentum[i]
        return [t.clone() for t in self.theta]


class AveragedAtTheEnd(Rule):
    """What is left different in the end becomes the average over all workers."""

    def finish(self, step: int) -> None:
        mean = mean_of([player.values() for player in self.game.players])
        for player in self.game.players:
            player.set_values(mean)
        average_statistics(self.game)


class Co2(AveragedAtTheEnd):
    """m_t = β·m + (x_{t-1} - mean of what became of it); x_{t+1} = x_t - η·m_t, clipped."""

    def __init__(
        self,
        game: Game,
        *,
        period: int,
        outer_lr: float,
        outer_momentum: float,
        max_norm: float | None = None,
    ) -> None:
        super().__init__(game)
        self.period, self.lr, self.beta = period, outer_lr, outer_momentum
        self.max_norm = max_norm
        self.points = [game.players[0].values()]
        self.means: list[Values] = []
        self.momentum = [torch.zeros_like(t) for t in self.points[0]]

    def after_step(self, step: int) -> None:
        if self.game.num_nodes == 1 or step % self.period:
            return
        turn = len(self.points) - 1
        self.means.append(mean_of([player.values() for player in self.game.players]))
        if turn > 0:
            began, became = self.points[turn - 1], self.means[turn - 1]
            for i, m in enumerate(self.momentum):
                self.momentum[i] = self.beta * m + (began[i] - became[i])
        norm = float(torch.cat([m.reshape(-1) for m in self.momentum]).norm())
        clip = 1.0 if self.max_norm is None or norm < self.max_norm else self.max_norm / norm
        point = self.points[turn]
        new = [x - self.lr * clip * m for x, m in zip(point, self.momentum, strict=True)]
        self.points.append(new)
        for player in self.game.players:
            player.set_values(new)


class Gossip(AveragedAtTheEnd):
    """Pairs of a shuffled row of nodes take their mean, weighted by their workers."""

    def __init__(self, game: Game, *, period: int, seed: int) -> None:
        super().__init__(game)
        self.period, self.seed = period, seed

    def after_step(self, step: int) -> None:
        if step % self.period:
            return
        row = list(range(self.game.num_nodes))
        random.Random(f"{self.seed}/{step // self.period}").shuffle(row)
        for i in range(0, len(row) - 1, 2):
            pair = [self.game.nodes[row[i]], self.game.nodes[row[i + 1]]]
            mean = mean_of([node[0].values() for node in pair], [len(node) for node in pair])
            for player in [*pair[0], *pair[1]]:
                player.set_values(mean)


class Demo(AveragedAtTheEnd):
    """Every node sends the largest cosine coefficients of its momentum; all see the average."""

    def __init__(
        self, game: Game, *, keep: int, chunk: int, decay: float, sign: bool = False
    ) -> None:
        super().__init__(game)
        self.keep, self.chunk, self.decay, self.sign = keep, chunk, decay, sign
        numel = sum(v.numel() for v in game.players[0].values())
        self.length = -(-numel // chunk) * chunk
        self.momenta = [np.zeros(self.length) for _ in game.nodes]

    def before_step(self) -> None:
        if self.game.num_nodes == 1:
            return
        total, num_workers = np.zeros(self.length), len(self.game.players)
        for number, node in enumerate(self.game.nodes):
            parts = [
                np.zeros(p.numel()) if p.grad is None else p.grad.double().cpu().numpy().ravel()
                for p in node[0].trained
            ]
            flat = np.concatenate(parts)
            momentum = self.decay * self.momenta[number]
            momentum[: len(flat)] += flat
            for start in range(0, self.length, self.chunk):
                part = slice(start, start + self.chunk)
                spectrum = dct(momentum[part], norm="ortho")
                spectrum[np.argsort(-np.abs(spectrum), kind="stable")[self.keep :]] = 0.0
                sent = idct(spectrum, norm="ortho")
                momentum[part] -= sent
                total[part] += len(node) / num_workers * sent
            self.momenta[number] = momentum
        seen = np.sign(total) if self.sign else total
        for player in self.game.players:
            place = 0
            for p in player.trained:
                own = torch.from_numpy(seen[place : place + p.numel()].copy())
                place += p.numel()
                if p.grad is not None or own.any():
                    p.grad = own.view(p.shape).to(p)


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
