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
