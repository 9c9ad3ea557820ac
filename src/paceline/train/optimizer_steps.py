"""When a training step is over: what counts is an optimizer's step, or one that was skipped.

Hooks see the steps of all optimizers in the process, because not every step is made by the one that
was attached: SAM, Lookahead or ZeRO step another one inside, a GAN has two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakMethod, WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

Closure = Callable[[], Any]

_watching: WeakSet[OptimizerSteps] = WeakSet()
_plain_scaler_step = torch.amp.GradScaler.step


class OptimizerSteps:
    """Tells before and after each step of an optimizer that trains our parameters.

    A step inside another one (SAM's base optimizer, a closure's) is part of it. With several
    optimizers, a training step is a round: it is over when all parameters that they train were
    stepped, or when one of them is about to step a second time. A generator and its discriminator
    count once.
    """

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        *,
        is_ours: Callable[[Optimizer], bool],
        before: Callable[[Optimizer], None],
        complete: Callable[[], None],
        after: Callable[[], None],
        share: Callable[[Closure], Closure],
    ) -> None:
        # Weak: torch keeps these hooks forever, and they must not keep a forgotten model alive.
        self._is_ours = WeakMethod(is_ours)
        self._before = WeakMethod(before)
        self._complete = WeakMethod(complete)
        self._after = WeakMethod(after)
        self._share = WeakMethod(share)
        self._expected = WeakSet(optimizers)
        self._round: WeakSet[Optimizer] = WeakSet()
        self._outermost: Optimizer | None = None
        self.num_seen = 0
        """Steps of our optimizers, counted one by one."""
        self.has_scaler = False
        """Whether a GradScaler has stepped one of our optimizers, or declined to."""
        on_before, on_after = WeakMethod(self._on_before), WeakMethod(self._on_after)
        self._handles = [
            register_optimizer_step_pre_hook(_called(on_before, with_closure=True)),
            register_optimizer_step_pre_hook(_sharing(WeakMethod(self._on_closure))),
            register_optimizer_step_post_hook(_called(on_after)),
        ]
        _watching.add(self)
        torch.amp.GradScaler.step = _watched_scaler_step  # type: ignore[assignment,method-assign]

    def close(self) -> None:
        """Look at no more steps."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _watching.discard(self)
        if not _watching:
            torch.amp.GradScaler.step = _plain_scaler_step  # type: ignore[method-assign]

    @property
    def is_inside_step(self) -> bool:
        """Whether one of our optimizers is stepping: it may call a closure many times."""
        return self._outermost is not None

    def expect(self, optimizer: Optimizer) -> None:
        """This one trains our parameters from now on; forget those that no longer do."""
        self._expected = WeakSet([each for each in self._expected if self.owns(each)])
        self._expected.add(optimizer)

    def skip(self, optimizer: Optimizer) -> None:
        """A step of this optimizer was left out; it counts like one that was made."""
        self._begin(optimizer)
        self._end(optimizer)

    def close_round(self) -> None:
        """The training step is over, if any optimizer has stepped in it."""
        if not self._round:
            return
        self._round.clear()
        after = self._after()
        if after is not None:
            after()

    def owns(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer trains our parameters."""
        is_ours = self._is_ours()
        return is_ours is not None and is_ours(optimizer)

    def _on_before(self, optimizer: Optimizer, has_closure: bool) -> None:
        if self._outermost not in (None, optimizer) or not self.owns(optimizer):
            return
        self._outermost = optimizer
        self._begin(optimizer)
        before = self._before()
        if before is not None:
            before(optimizer)
        # Lightning's closure makes the last of several backward passes. What the others have left
        # is exchanged with it, not once before and once again.
        if not (has_closure and _calls_closure_first(optimizer)):
            self._complete_left_over()

    def _complete_left_over(self) -> None:
        complete = self._complete()
        if complete is not None:
            complete()

    def _on_closure(self, optimizer: Optimizer, closure: Closure) -> Closure:
        """Workers that decide by the loss must decide by the same; it is theirs together."""
        share = self._share()
        if share is None or self._outermost is not optimizer:
            return closure
        if _calls_closure_first(optimizer):
            closure = self._completed(closure)
        return share(closure) if _decides_by_loss(optimizer) else closure

    def _completed(self, closure: Closure) -> Closure:
        """A closure after which all gradients are exchanged, whatever it does."""

        def completed() -> Any:
            loss = closure()
            self._complete_left_over()
            return loss

        return completed

    def _on_after(self, optimizer: Optimizer) -> None:
        if self._outermost is not optimizer:
            return
        self._outermost = None
        self.num_seen += 1
        self._end(optimizer)

    def _begin(self, optimizer: Optimizer) -> None:
        if optimizer in self._round:
            self.close_round()

    def _end(self, optimizer: Optimizer) -> None:
        if len(self._expected) == 1 and optimizer in self._expected:  # as nearly always
            self._round.add(optimizer)
            self.close_round()
            return
        expected = _parameters_of(self._expected)
        if optimizer not in self._expected and not _parameters_of([optimizer]) <= expected:
            # Nobody told us of it. From the next round on it is waited for.
            self._expected.add(optimizer)
            return
        self._round.add(optimizer)
        if expected <= _parameters_of(self._round):
            self.close_round()


def _decides_by_loss(optimizer: Optimizer) -> bool:
    """Whether a closure's loss may matter: torch's own optimizers only hand it on, but for one.

    Lightning always gives a closure, and reading each loss would make a GPU wait.
    """
    return not _calls_closure_first(optimizer) or isinstance(optimizer, torch.optim.LBFGS)


def _calls_closure_first(optimizer: Optimizer) -> bool:
    """Whether no gradient is used before a closure has been called: so are torch's own."""
    return type(optimizer).__module__.startswith("torch.optim.")


def _parameters_of(optimizers: Iterable[Optimizer]) -> set[int]:
    return {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _called(
    method: Callable[[], Callable[..., None] | None], *, with_closure: bool = False
) -> Callable[..., None]:
    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        call = method()
        if call is not None and with_closure:
            call(optimizer, callable(_closure_of(args, kwargs)))
        elif call is not None:
            call(optimizer)

    return hook


def _closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # step(self, closure): the optimizer itself is the first of the arguments.
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def _sharing(
    method: Callable[[], Callable[[Optimizer, Closure], Closure] | None],
) -> Callable[..., tuple[Any, Any] | None]:
    """A hook that gives ``step()`` another closure, where it was given one."""

    def hook(
        optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        call = method()
        closure = _closure_of(args, kwargs)
        if call is None or not callable(closure):
            return None
        shared = call(optimizer, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": shared}
        return (args[0], shared, *args[2:]), kwargs

    return hook


def _watched_scaler_step(
    scaler: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any
) -> float | None:
    """GradScaler.step, which leaves the optimizer's step out where it meets infinities.

    Nobody else is told of that: not on this node alone, nor in what order.
    """
    watching = [steps for steps in _watching if steps.owns(optimizer)]
    before = [steps.num_seen for steps in watching]
    result = _plain_scaler_step(scaler, optimizer, *args, **kwargs)
    for steps, count in zip(watching, before, strict=True):
        steps.has_scaler = True
        if steps.num_seen == count:
            steps.skip(optimizer)
    return result
