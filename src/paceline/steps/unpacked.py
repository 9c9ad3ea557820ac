"""Sequences that are not packed, for Hugging Face's transformers.

Its decoders look at the values of positions to see whether several sequences share a row. Fake
tensors have no values: it then builds a mask for every step, to be sure, which it leaves out for an
ordinary batch. Attention would take another path than on a GPU, and other memory: 17 % too little
for a Llama with grouped queries in fp32.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_MODULE = "transformers.masking_utils"
_QUESTION = "find_packed_sequence_indices"


@contextmanager
def unpacked_sequences(inputs: Any) -> Iterator[None]:
    """Inside, transformers takes every row for one sequence, unless the batch has positions."""
    module = sys.modules.get(_MODULE)
    is_told = isinstance(inputs, Mapping) and inputs.get("position_ids") is not None
    if module is None or is_told or not hasattr(module, _QUESTION):
        yield
        return
    own = getattr(module, _QUESTION)
    setattr(module, _QUESTION, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        setattr(module, _QUESTION, own)
