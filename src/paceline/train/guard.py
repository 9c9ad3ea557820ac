"""What cannot be attached, and why: refused before it would train wrongly."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from paceline.strategies import Strategy
from paceline.teams import Workers

# Which strategy each attached parameter belongs to, and the strategies that were ever attached.
_claims: WeakIdKeyDictionary = WeakIdKeyDictionary()
_used: WeakSet[Strategy] = WeakSet()
# DistributedDataParallel wrappers that somebody keeps from averaging, as long as they are in here.
_muted: WeakSet[DistributedDataParallel] = WeakSet()

_DDP_ATTRIBUTE = "_ddp_params_and_buffers_to_ignore"
_TWO_AVERAGES = (
    "DistributedDataParallel averages the same gradients that paceline does, and the two would "
    "spoil each other's; attach the plain model and do not wrap it (sync is the strategy that "
    "does what DDP does; for Accelerate, Lightning, Fabric and the Hugging Face Trainer, "
    "paceline.integrations has what leaves DDP out)"
)


def check_model(model: nn.Module) -> None:
    """Refuse models that another wrapper synchronises, or whose gradients cannot be exchanged."""
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise ValueError(f"the model is wrapped already: {_TWO_AVERAGES}")
        if _is_a(module, "torch.distributed.fsdp", "FullyShardedDataParallel"):
            raise ValueError(_sharded(name))
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(
                f"{name or type(module).__name__} has sparse gradients, which are not exchanged; "
                "make it with sparse=False"
            )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(
                f"{name} has no shape yet: call the model once on a batch before it is attached"
            )
    check_not_wrapped(list(model.parameters()))


def _is_a(thing: object, module: str, name: str) -> bool:
    """Whether it is of a class whose module takes long to import, and may not have been."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(thing, kind)


def _sharded(name: str) -> str:
    return (
        f"{name or 'the model'} is sharded by FullyShardedDataParallel, whose parameters paceline "
        "cannot exchange; shard it with torch.distributed.fsdp.fully_shard inside each node, or "
        "attach a model that is whole on every worker"
    )


def check_not_wrapped(parameters: Collection[nn.Parameter]) -> None:
    """Refuse parameters whose gradients some DistributedDataParallel averages."""
    own = {id(parameter) for parameter in parameters}
    for wrapper in _wrappers():
        if wrapper in _muted:
            continue
        reduced = wrapper.__dict__.get("_module_parameters", ())
        if any(id(parameter) in own and parameter.requires_grad for parameter in reduced):
            raise ValueError(f"the model is wrapped: {_TWO_AVERAGES}")


def _wrappers() -> Iterator[DistributedDataParallel]:
    """All that are alive. A model does not know who wraps it, and DDP keeps no list."""
    # It cannot be made without a process group, and looking at all objects takes a while.
    if not dist.is_available() or not dist.is_initialized():
        return
    kinds, found = set[type](), [DistributedDataParallel]
    while found:
        kind = found.pop()
        kinds.add(kind)
        found += kind.__subclasses__()
    for thing in gc.get_objects():
        if type(thing) in kinds:
            yield thing


@contextlib.contextmanager
def muted(wrapper: DistributedDataParallel) -> Iterator[None]:
    """Inside, the wrapper only calls its model, which may then be attached."""
    with wrapper.no_sync():
        _muted.add(wrapper)
        try:
            yield
        finally:
            _muted.discard(wrapper)


class WrapGuard:
    """Refuses a DistributedDataParallel around the attached model at the moment it is made.

    DDP asks the model which parameters to leave alone; this is what answers. Copies of the model
    do not have it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = model.__dict__.get(_DDP_ATTRIBUTE)
        setattr(model, _DDP_ATTRIBUTE, self)

    def __iter__(self) -> Iterator[str]:
        raise ValueError(f"the model is attached already: {_TWO_AVERAGES}")

    def __deepcopy__(self, memo: dict[int, Any]) -> list[str]:
        return list(self._before or ())

    def __reduce__(self) -> tuple[type[list[str]], tuple[list[str]]]:
        return list, (list(self._before or ()),)

    def remove(self) -> None:
        """Leave the model as it was."""
        if getattr(self._model, _DDP_ATTRIBUTE, None) is not self:
            return
        if self._before is None:
            delattr(self._model, _DDP_ATTRIBUTE)
        else:
            setattr(self._model, _DDP_ATTRIBUTE, self._before)


def check_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimizers that train what the model does not have: it would never be exchanged."""
    if not optimizers:
        raise ValueError("attach needs an optimizer, or a list of them")
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"optimizer={optimizer!r} is not a torch.optim.Optimizer")
    num_foreign = len(foreign_parameters(optimizers, set(model.parameters())))
    if num_foreign:
        raise ValueError(
            f"the optimizer trains {num_foreign} parameters that the model does not have, and "
            "that would differ from worker to worker; attach one module that holds them all, such "
            "as nn.ModuleList([model, head])"
        )


def foreign_parameters(
    optimizers: Sequence[Optimizer], known: Collection[nn.Parameter]
) -> list[nn.Parameter]:
    """Trainable parameters of the optimizers that are not among the known ones."""
    return [
        parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and parameter not in known
    ]


def refuse_if_surviving(workers: Workers, what: str) -> None:
    """Refuse what needs all workers, where some may be lost."""
    if workers.survivors is not None:
        raise ValueError(
            f"{what} needs all workers, and with survive=True some may be lost; share the data by "
            "pace.workers.world.rank and pace.workers.world.size, which stay the same"
        )


def claim(parameters: Sequence[nn.Parameter], strategy: Strategy) -> None:
    """Note that these parameters are attached; refuse those that are already."""
    for parameter in parameters:
        if parameter in _claims:
            raise ValueError(
                f"the model is attached already, with {type(_claims[parameter]).__name__}; give "
                "all its optimizers at once, attach(model, [first, second]), or detach() first"
            )
    if strategy in _used:
        raise ValueError(
            f"this {type(strategy).__name__} has been attached before, and holds the state of that "
            "training; make a new one"
        )
    _used.add(strategy)
    extend_claim(parameters, strategy)


def extend_claim(parameters: Sequence[nn.Parameter], strategy: Strategy) -> None:
    """Note that a strategy has these parameters too."""
    for parameter in parameters:
        _claims[parameter] = strategy


def release(strategy: Strategy) -> None:
    """Note that a strategy's parameters are free again."""
    claims = list(_claims.items())  # type: ignore[no-untyped-call]
    for parameter, owner in claims:
        if owner is strategy:
            del _claims[parameter]
