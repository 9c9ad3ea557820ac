"""The loss over all workers' samples as a plain function, for algorithms written for one process.

A sequential program, such as L-BFGS with its line search, calls the function; what it does not see
is that every worker computes its samples' part and that the parts are summed. All workers get the
same bits, so that they take the same decisions and stay equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from paceline.teams import Pending, Team
from paceline.train.samples import SampleOrder, Samples

Vector = npt.NDArray[np.float64]
Interval = int | Literal["epoch"]

# Small, so that the sum over a thousand workers is exact in fp32.
_CHECKSUMS = 4096


@dataclass(kw_only=True, eq=False)
class Objective:
    """The mean loss over all workers' samples, with its gradient; :meth:`Pace.objective` makes it.

    - ``objective()`` gives every parameter its gradient and returns the loss: a closure, for
      ``optimizer.step(objective)``.
    - ``objective(x)`` takes the parameters as a vector and returns loss and gradient, for
      ``scipy.optimize.minimize(objective, objective.x, jac=True)``.
    - ``for block in objective`` gives the objectives of one block of samples after another.

    All workers make the same calls.
    """

    parameters: Sequence[nn.Parameter]
    _world: Team
    _wait: Callable[[Pending], None] = field(repr=False)
    _give: Callable[[Sequence[Tensor]], None] = field(repr=False)
    _check: Callable[[], None] = field(repr=False)
    _samples: Samples = field(repr=False)
    _order: SampleOrder = field(repr=False)
    _loss_fn: Callable[..., Tensor] = field(repr=False)
    interval: Interval
    batch_size: int | None
    span: tuple[int, int]
    """From which sample to which, in the order of all workers' samples."""

    @property
    def num_samples(self) -> int:
        """Samples of all workers."""
        return self.span[1] - self.span[0]

    def __iter__(self) -> Iterator[Objective]:
        """The objectives of the blocks, each ``interval`` samples of all workers, in order."""
        start, stop = self.span
        size = self.num_samples if self.interval == "epoch" else self.interval
        for begin in range(start, stop, size):
            yield replace(self, span=(begin, min(begin + size, stop)))

    @property
    def x(self) -> Vector:
        """The parameters as one vector; what is assigned to it becomes the parameters."""
        with torch.no_grad():
            flat = torch.cat([p.detach().reshape(-1).double().cpu() for p in self.parameters])
        return flat.numpy()

    @x.setter
    def x(self, values: npt.ArrayLike) -> None:
        vector = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
        sizes = [p.numel() for p in self.parameters]
        if vector.dim() != 1 or vector.numel() != sum(sizes):
            raise ValueError(
                f"the model has {sum(sizes)} trainable values, and was given a vector of shape "
                f"{tuple(vector.shape)}; start from objective.x"
            )
        with torch.no_grad():
            for parameter, part in zip(self.parameters, torch.split(vector, sizes), strict=True):
                parameter.copy_(part.view(parameter.shape))

    @overload
    def __call__(self) -> Tensor: ...

    @overload
    def __call__(self, x: npt.ArrayLike) -> tuple[float, Vector]: ...

    def __call__(self, x: npt.ArrayLike | None = None) -> Tensor | tuple[float, Vector]:
        """The loss and its gradient.

        Args:
            x: The parameters as a vector. Without it, they are the model's, and the gradients
                become the parameters' ``.grad``.

        """
        self._check()
        if x is None:
            loss, gradient = self._summed(self._gradients)
            sizes = [p.numel() for p in self.parameters]
            parts = zip(self.parameters, torch.split(gradient, sizes), strict=True)
            self._give([part.view(p.shape).to(p.dtype) for p, part in parts])
            return loss
        vector = np.array(x, dtype=np.float64)
        self.x = vector
        loss, gradient = self._summed(self._gradients, point=vector)
        return float(loss), gradient.double().cpu().numpy()

    def hessp(self, x: npt.ArrayLike, p: npt.ArrayLike) -> Vector:
        """The product of the Hessian with a vector, as ``minimize(hessp=objective.hessp)`` wants.

        Args:
            x: The parameters as a vector.
            p: The vector.

        """
        self._check()
        vector, direction = np.array(x, dtype=np.float64), np.array(p, dtype=np.float64)
        self.x = vector
        along = torch.from_numpy(direction).to(self._device, self._dtype)

        def products(loss: Tensor) -> Tensor:
            gradients = torch.autograd.grad(
                loss, self.parameters, create_graph=True, materialize_grads=True
            )
            slope = torch.cat([g.reshape(-1).to(along.dtype) for g in gradients]).dot(along)
            if not slope.requires_grad:  # a loss that is linear in all of them
                return torch.zeros_like(along)
            return self._flat(torch.autograd.grad(slope, self.parameters, materialize_grads=True))

        _, product = self._summed(products, point=np.concatenate([vector, direction]))
        return product.double().cpu().numpy()

    @property
    def _device(self) -> torch.device:
        return self.parameters[0].device

    @property
    def _dtype(self) -> torch.dtype:
        is_wide = any(p.dtype == torch.float64 for p in self.parameters)
        return torch.float64 if is_wide else torch.float32

    def _gradients(self, loss: Tensor) -> Tensor:
        # Not backward(): the hooks that exchange gradients would take these for a step's.
        return self._flat(torch.autograd.grad(loss, self.parameters, materialize_grads=True))

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.detach().reshape(-1).to(self._dtype) for tensor in tensors])

    def _summed(
        self, derive: Callable[[Tensor], Tensor], *, point: Vector | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss and something derived from it, over all samples: sum of count/total · part."""
        numel = sum(p.numel() for p in self.parameters)
        # In one message: the derivative, the loss, and a checksum of where it was asked for.
        total = torch.zeros(numel + 2, dtype=self._dtype, device=self._device)
        begin, end = self._order.own_range(*self.span)
        size = self.batch_size or max(1, end - begin)
        with torch.enable_grad():
            for start in range(begin, end, size):
                stop = min(start + size, end)
                loss = self._samples.loss_of(self._loss_fn, start, stop)
                weight = (stop - start) / self.num_samples
                total[:numel].add_(derive(loss), alpha=weight)
                total[numel].add_(loss.detach().to(total.dtype), alpha=weight)
        mark = 0 if point is None else zlib.crc32(point.tobytes()) % _CHECKSUMS
        total[-1] = mark
        self._wait(self._world.all_reduce(total, "sum"))
        if point is not None and float(total[-1]) != mark * self._world.size:
            raise ValueError(
                "the workers asked for the objective at different points, so their programs have "
                "drifted apart; start all of them from objective.x, and draw no random numbers "
                "without a seed"
            )
        return total[numel].clone(), total[:numel]


def make_objective(
    loss_fn: Callable[..., Tensor],
    data: Any,
    *,
    interval: Interval,
    batch_size: int | None,
    parameters: Sequence[nn.Parameter],
    world: Team,
    wait: Callable[[Pending], None],
    give: Callable[[Sequence[Tensor]], None],
    check: Callable[[], None],
) -> Objective:
    """An objective over all workers' samples, whose numbers the workers tell each other."""
    if interval != "epoch" and (not isinstance(interval, int) or interval < 1):
        raise ValueError(f"interval={interval!r} must be 'epoch' or a number of samples")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    check()
    samples = Samples(data)
    counts = [int(each) for each in world.gather(str(len(samples)).encode())]
    if not sum(counts):
        raise ValueError("the objective has no samples on any worker")
    order = SampleOrder(counts, world.rank)
    return Objective(
        parameters=parameters,
        _world=world,
        _wait=wait,
        _give=give,
        _check=check,
        _samples=samples,
        _order=order,
        _loss_fn=loss_fn,
        interval=interval,
        batch_size=batch_size,
        span=(0, order.total),
    )
