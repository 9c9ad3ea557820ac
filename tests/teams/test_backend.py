"""All workers of a job choose the same backend."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from paceline.teams.backend import GLOO, NCCL_AND_GLOO, agree_on_backend


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([None], GLOO),
        (["a/0"], NCCL_AND_GLOO),
        (["a/0", "a/1", "b/0", "b/1"], NCCL_AND_GLOO),
        # Two workers share a GPU, which NCCL refuses.
        (["a/0", "a/0", "b/0", "b/1"], GLOO),
        # One machine has no GPU.
        (["a/0", "a/1", None, None], GLOO),
        ([None, None, None], GLOO),
    ],
)
def test_nccl_where_every_worker_has_a_gpu_to_itself(gpus: list[str | None], expected: str) -> None:
    store = HashStore()
    with ThreadPoolExecutor(len(gpus)) as threads:
        chosen = threads.map(lambda gpu: agree_on_backend(store, len(gpus), gpu), gpus)
        assert list(chosen) == [expected] * len(gpus)
