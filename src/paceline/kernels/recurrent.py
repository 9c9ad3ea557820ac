"""Recurrent layers as cuDNN runs them: what one call multiplies, keeps and needs."""

from __future__ import annotations

from typing import Literal

from paceline.steps.kernel import DTYPE_BYTES, Kernel
from paceline.steps.recurrent import MODES, kept_states

RECURRENT_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
"""How many products with the input and the state each kind of recurrent layer does."""


def length_and_batch(kernel: Kernel) -> tuple[int, int]:
    """The steps of a sequence, and how many sequences there are."""
    first, second = kernel.operands[0].shape[:2]
    return (second, first) if kernel.args[6] else (first, second)


def recurrent_steps(kernel: Kernel) -> int:
    """Steps that are launched one by one, in every layer and direction along the sequence.

    0 where states or weights stay on chip: then one launch does them all.
    """
    if recurrent_algorithm(kernel) != "step by step":
        return 0
    length, _ = length_and_batch(kernel)
    return length * int(kernel.args[4]) * _directions(kernel)


def recurrent_weights(kernel: Kernel) -> int:
    """The weights of all layers and directions; without biases."""
    _, kind, width, projected, num_layers = kernel.args[:5]
    made = projected or width
    weights = 0
    for layer in range(num_layers):
        given = kernel.operands[0].shape[-1] if layer == 0 else _directions(kernel) * made
        weights += RECURRENT_GATES[kind] * width * (given + made) + width * projected
    return weights * _directions(kernel)


Algorithm = Literal["small states stay", "weights stay", "step by step"]
# The widest states that stay on chip: forward and backward, of plain layers and of LSTM and GRU.
_SMALL_WIDTH = {True: (384, 256), False: (192, 128)}


def recurrent_algorithm(kernel: Kernel) -> Algorithm:
    """How cuDNN runs it, by PyTorch's rules (ATen/native/cudnn/RNN.cpp) for a data-center GPU.

    In bf16, small states are stepped through like others: seen in the times of an H200.
    """
    _, kind, width, projected, num_layers, _, _, _, both = kernel.args[:9]
    given = kernel.operands[0]
    if projected or given.dtype == "bf16":
        return "step by step"
    if width <= _SMALL_WIDTH[kind.startswith("rnn")][kernel.op != "recurrent"]:
        return "small states stay"
    _, batch = length_and_batch(kernel)
    is_single = num_layers == 1 and not both and kind != "gru"
    is_aligned = width % 128 == 0 and given.shape[-1] % 128 == 0 and batch % 8 == 0
    is_small = width <= 1024 and batch <= 128
    if kind != "lstm" and batch >= 96 and width >= 896:
        is_small = False
    if given.dtype == "f16" and is_single and is_aligned and is_small:
        return "weights stay"
    return "step by step"


def kept_bytes(kernel: Kernel) -> int:
    """What the forward pass keeps for the backward pass."""
    length, batch = length_and_batch(kernel)
    _, kind, width, projected, num_layers = kernel.args[:5]
    states = kept_states(MODES[kind], width, projected, num_layers)
    values = length * batch * _directions(kernel) * states
    return values * DTYPE_BYTES[kernel.operands[0].dtype]


def workspace_terms(kernel: Kernel) -> list[float]:
    """What a recurrent kernel's workspace adds up from, in bytes; how often each comes is fitted.

    On an H200 (cuDNN 9) about 8 MiB per layer and direction, the weights once, and once more for
    the backward pass of layers without biases, and inputs, states and gates of the whole sequence
    some times, more with two directions or with the batch first.
    """
    given = kernel.operands[0]
    size = DTYPE_BYTES[given.dtype]
    length, batch = length_and_batch(kernel)
    width, num_layers, has_biases, is_batch_first = (kernel.args[i] for i in (2, 4, 5, 6))
    directions = _directions(kernel)
    weights_bytes = float(recurrent_weights(kernel) * size)
    states_bytes = length * batch * width * directions * size
    gates_bytes = RECURRENT_GATES[kernel.args[1]] * states_bytes
    return [
        float(1 << 20),
        float(num_layers * directions << 20),
        weights_bytes,
        weights_bytes * (not has_biases),
        float(states_bytes),
        float(states_bytes * (directions - 1)),
        float(states_bytes * num_layers),
        float(gates_bytes),
        float(gates_bytes * num_layers),
        float(given.num_bytes),
        float(given.num_bytes * (directions - 1)),
        float(given.num_bytes * is_batch_first),
        float(batch * width * directions * num_layers * size),
        # Small states that stay: two directions need 1.3 times what one needs.
        float(states_bytes / directions),
        float(gates_bytes / directions),
    ]


def _directions(kernel: Kernel) -> int:
    return 2 if kernel.args[8] else 1
