"""What would take all memory, or minutes, is refused before it does."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from paceline.cluster import load_cluster, parse_cluster
from paceline.cluster.units import parse_bandwidth, parse_size
from paceline.kernels.fitted import load_model
from paceline.kernels.profile import load_profile
from paceline.reading import parse_json, read_bytes, unpack
from paceline.rehearse.record_worker import WorkerRecording, record_worker
from paceline.steps import load_step
from paceline.strategies.wire import make_wire
from paceline.studies.axes import make_axes
from paceline.traces.trace import read_trace

MiB = 1 << 20


@pytest.fixture
def peak() -> Iterator[None]:
    """No test here takes more than 100 MiB of Python's memory."""
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100 * MiB


def bomb(num_mib: int, content: bytes = b" ") -> bytes:
    """A small file that unpacks to so many MiB."""
    return gzip.compress(content * MiB) * num_mib


@pytest.mark.usefixtures("peak")
def test_a_bomb_is_not_unpacked() -> None:
    packed = bomb(4000)
    assert len(packed) < 5 * MiB
    with pytest.raises(ValueError, match="unpacks to more than 8 MiB"):
        unpack(packed, "bomb", most_bytes=8 * MiB)


@pytest.mark.usefixtures("peak")
def test_a_trace_that_is_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.traces.trace._MOST_BYTES", 8 * MiB)
    (tmp_path / "t.json.gz").write_bytes(bomb(4000))
    with pytest.raises(ValueError, match=r"t\.json\.gz: unpacks to more than 8 MiB"):
        read_trace(tmp_path / "t.json.gz")


@pytest.mark.usefixtures("peak")
def test_a_profile_that_is_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.kernels.gz"
    path.write_bytes(bomb(4000))  # one line of 4 GiB
    with pytest.raises(ValueError, match="a line has more than"):
        load_profile(path)
    header = json.dumps({"format": "paceline-kernels", "version": 1}).encode() + b"\n"
    facts = json.dumps({"a": "x" * 10_000}).encode() + b"\n"
    path.write_bytes(gzip.compress(header) + gzip.compress(facts * 100) * 4000)
    monkeypatch.setattr("paceline.kernels.profile._MOST_CHARACTERS", 4 * MiB)
    with pytest.raises(ValueError, match="unpacks to more than 4 MiB"):
        load_profile(path)


@pytest.mark.usefixtures("peak")
def test_a_file_of_gigabytes(tmp_path: Path) -> None:
    for name in ("c.toml", "m.model.safetensors", "t.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(8 << 30)  # a hole: nothing on the disk
    with pytest.raises(ValueError, match="has more than 4 MiB"):
        load_cluster(tmp_path / "c.toml")
    with pytest.raises(ValueError, match="has more than 256 MiB"):
        load_model(tmp_path / "m.model.safetensors")
    with pytest.raises(ValueError, match="has more than 1 MiB"):
        read_bytes(tmp_path / "t.json", most_bytes=MiB)


@pytest.mark.usefixtures("peak")
def test_a_device_that_never_ends() -> None:
    with pytest.raises(ValueError, match="has more than 4 MiB"):
        load_cluster(Path("/dev/zero"))


def test_a_safetensors_header_that_promises_too_much(tmp_path: Path) -> None:
    path = tmp_path / "m.model.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match="cut off or is no safetensors file"):
        load_model(path)


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 100_000])
def test_nesting(nested: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(nested)
    with pytest.raises(ValueError, match=r"nested too deeply|not valid TOML"):
        parse_cluster(f"a = {nested}", "c.toml")


@pytest.mark.parametrize("digits", ["9" * 5000, "1" + "0" * 1_000_000])
def test_numbers_of_a_million_digits(digits: str) -> None:
    for text in (f"{digits} GB", f"{digits} Mbit/s"):
        with pytest.raises(ValueError, match="too long"):
            (parse_size if "GB" in text else parse_bandwidth)(text)
    with pytest.raises(ValueError, match=r"c\.toml: is not valid TOML"):
        parse_cluster(f"a = {digits}", "c.toml")


@pytest.mark.usefixtures("peak")
def test_a_cluster_of_too_many_nodes() -> None:
    text = paceline.dump_cluster(load_cluster("lab-2x2"))
    with pytest.raises(ValueError, match=r"workers are more than the 10,000,000"):
        parse_cluster(text.replace("count = 2", "count = 1000000000000000"), "c.toml")
    with pytest.raises(ValueError, match=r"workers are more than the 10,000,000"):
        load_cluster("lab-2x2").with_nodes(10**15)
    assert load_cluster("lab-2x2").with_nodes(100_000).num_workers == 200_000


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("batch", [10**12, 10**30])
def test_a_batch_of_too_many_samples(device: str, batch: int) -> None:
    with pytest.raises(ValueError, match=rf"batch of {batch} is more than"):
        load_step("mlp", batch=batch, device=device)


def test_a_batch_that_does_not_fit_here() -> None:
    with pytest.raises(ValueError, match="does not fit here"):
        load_step("resnet50", batch=1 << 29, device="cpu")


@pytest.mark.usefixtures("peak")
def test_axes_of_too_many_points() -> None:
    cluster = load_cluster("dgx-h200")
    assert len(make_axes(cluster, 32, workers=f"1:{10**9}").workers) < 200
    assert len(make_axes(cluster, 32, batches=f"1:{10**12 - 1}").batch) < 100
    with pytest.raises(ValueError, match="at most 1000 values"):
        make_axes(cluster, 32, workers=range(1, 10**9))
    for text in ("0:1e9", "nan:1", "1:inf", "-1:2", "1e999:1e999", "1e-300:1e300"):
        with pytest.raises(ValueError, match="--arithmetic"):
            make_axes(cluster, 32, arithmetic=text)


def test_a_period_that_would_take_hours_to_rehearse() -> None:
    step = load_step("mlp")
    cases: list[tuple[str, dict[str, Any]]] = [
        ("daso", {"period": 10**6}),
        ("diloco", {"period": 10**9}),
        ("streaming-diloco", {"period": 10**9, "fragments": 10**9}),
    ]
    for strategy, options in cases:
        with pytest.raises(ValueError, match="too long to rehearse"):
            paceline.predict(step, cluster="lab-2x2", strategy=strategy, **options)


def test_a_late_exchange_is_recorded_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """How late it is follows from the first play; a try for every step would take minutes."""
    tried: list[int] = []

    def counted(*arguments: Any, **named: Any) -> WorkerRecording:
        tried.append(named["lateness"])
        return record_worker(*arguments, **named)

    monkeypatch.setattr("paceline.rehearse.cache.record_worker", counted)
    slow = load_cluster("lab-2x2").with_link(1e5)
    paceline.predict(load_step("mlp"), cluster=slow, strategy="daso", period=60)
    assert max(tried) > 20
    assert len(set(tried)) < 8


def test_chunks_of_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"chunk_bytes would cut an exchange into [\d,]+ parts"):
        paceline.predict(load_step("resnet18"), cluster="lab-2x2", strategy="daso", chunk_bytes=1)
    monkeypatch.setattr("paceline.teams.journal.MOST_TICKETS", 100)
    with pytest.raises(ValueError, match="sends more than 100 messages"):
        paceline.predict(load_step("mlp"), cluster="lab-2x2", strategy="daso", chunk_bytes=4096)
    # Few parameters may travel in as small parts as anybody likes.
    assert len(make_wire("fp32", torch.ones(64), num_nodes=2, chunk_bytes=4).chunks) == 64


@pytest.mark.parametrize(
    "changes",
    [
        {"jitter": float("nan")},
        {"jitter": 1e300},
        {"samples": 10**40},
    ],
)
def test_figures_that_cannot_be(changes: dict[str, float | int]) -> None:
    with pytest.raises(ValueError, match=r"vary by|samples, not|too large or too small"):
        paceline.predict(load_step("mlp"), cluster="lab-2x2", **changes)  # type: ignore[arg-type]


def test_links_and_hosts_beyond_floats() -> None:
    slow = load_cluster("lab-2x2").with_host(1e-320)
    with pytest.raises(ValueError, match="too large or too small"):
        paceline.predict(load_step("mlp"), cluster=slow)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    # What `<(generate-cluster)` hands over has no size to ask for.
    read, write = os.pipe()
    os.write(write, paceline.dump_cluster(load_cluster("lab-2x2")).encode())
    os.close(write)
    assert load_cluster(Path(f"/dev/fd/{read}")).num_workers == 4
    os.close(read)
