"""The parsers of files, with the files that fuzzing begins from."""

from __future__ import annotations

import gzip
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing import Target, of_text

CLUSTER = """name = "c"
description = "d"
[device.gpu]
memory = "80 GB"
memory_bandwidth = "2 TB/s"
flops = { fp32 = "19.5 TFLOP/s", bf16 = "300 TFLOP/s" }
multiprocessors = 100
[between]
latency = "5 us"
bandwidth = "10 Gbit/s"
[[node]]
name = "n"
count = 2
workers = 8
device = "gpu"
price_per_hour = 3.5
host = "xeon-8480"
jitter = 0.02
inside = { latency = "5 us", bandwidth = "25 GB/s", reached = { 2 = "20 GB/s" } }
[[node]]
workers = 4
device = "v100"
slowdown = 1.5
inside = { latency = "1 us", bandwidth = "25 GB/s", half_bandwidth_at = "1 MB" }
"""
DEVICES = """[a]
memory = "80 GB"
memory_bandwidth = "2 TB/s"
flops = { fp32 = "19.5 TFLOP/s", tf32 = "150 TFLOP/s" }
clock_ghz = 1.4
l2 = "40 MB"
source = "s"
"""
HOSTS = """speed = 1.5
source = "measured"
"""
PROFILE = """{"format":"paceline-kernels","version":1,"device_name":"x","device_type":"cpu"}
["relu",["@f32:8,3,224,224"],["@f32:8,3,224,224"],"",1.2e-05,0,["resnet50"]]
["addmm",["@f32:10","@f32:8,4:1,8","@f32:4,10",["beta",1]],["@f32:8,10"],"tf32",2e-6,1024,[]]
["masked_fill",["@f32:8","@b8:8",-Infinity],["@f32:8"],"",null,0,[]]
"""
WORDS = ("name", "node", "workers", "device", "count", "between", "latency", "bandwidth", "GB/s")


def targets_of_files(folder: Path) -> list[Target]:
    """Every parser of a file.

    Args:
        folder: An empty one, for files that are read.
    """
    from paceline.cluster import dump_cluster, parse_cluster
    from paceline.cluster.devices import Devices
    from paceline.cluster.host import Host
    from paceline.kernels.fitted import load_model
    from paceline.kernels.profile import load_profile
    from paceline.kernels.table import load_table
    from paceline.traces.trace import parse_trace, read_trace

    def cluster(text: str) -> object:
        found = parse_cluster(text, "fuzz.toml")
        return dump_cluster(found), found.to_dict() if found.num_nodes < 1000 else None

    def devices(text: str) -> object:
        return Devices.from_table({"device": _toml(text)}, origin="devices.toml")

    def in_file(name: str, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
        def parsed(data: bytes) -> object:
            (folder / name).write_bytes(data)
            return parse(folder / name)

        return parsed

    def packed(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
        return lambda data: parse(gzip.compress(data, compresslevel=1))

    def table(path: Path) -> object:
        found = load_table(path)
        return list(found), found.some_of(lambda _: True, dtype="f32", most=100)

    trace = _trace(folder)
    profile = in_file("p.kernels.gz", load_profile)
    return [
        Target(name="cluster file", parse=of_text(cluster), seeds=[CLUSTER.encode()], tokens=WORDS),
        Target(name="devices", parse=of_text(devices), seeds=[DEVICES.encode()], tokens=WORDS),
        Target(
            name="host",
            parse=of_text(lambda text: Host.from_table(_toml(text), origin="hosts.toml")),
            seeds=[HOSTS.encode()],
        ),
        Target(
            name="kernel profile",
            parse=packed(profile),
            seeds=[PROFILE.encode()],
            tokens=("@f32:1", "null", ":", ",", "[", "]"),
        ),
        Target(
            name="kernel profile, packed",
            parse=profile,
            seeds=[gzip.compress(PROFILE.encode())],
            is_text=False,
        ),
        Target(
            name="kernel table",
            parse=packed(in_file("t.kernels.gz", table)),
            seeds=[PROFILE.encode()],
            tokens=("@f32:1", "null", ":", ",", "[", "]"),
        ),
        Target(
            name="MLP weights",
            parse=in_file("m.model.safetensors", load_model),
            seeds=[_weights(folder)],
            tokens=("F32", "I64", "BOOL", '"shape":[', "data_offsets", "residual", "softmax"),
            is_text=False,
        ),
        Target(
            name="trace",
            parse=lambda data: parse_trace(data, "fuzz.json"),
            seeds=[trace],
            tokens=('"ph"', '"X"', '"cat"', '"ts"', '"dur"', '"pid"', "step", "-1"),
        ),
        Target(
            name="trace, packed",
            parse=in_file("t.json.gz", read_trace),
            seeds=[gzip.compress(trace)],
            is_text=False,
        ),
        _checkpoint(folder),
    ]


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:  # ours is to read the table
        raise ValueError("nested too deeply") from None


def _trace(folder: Path) -> bytes:
    from paceline.traces.trace import TRACKS, Span, write_trace

    spans = [
        Span(0, track, f"{track} 1", 0.001 * i, 0.001 * i + 1) for i, track in enumerate(TRACKS)
    ]
    write_trace(folder / "seed.json", spans, worker_names={0: "worker 0", 1: "b"}, title="t")
    return (folder / "seed.json").read_bytes()


def _weights(folder: Path) -> bytes:
    """A model with one small family, as `paceline fit` writes it."""
    import torch

    from paceline.cluster import load_device
    from paceline.kernels.fitted import FittedModel
    from paceline.kernels.host import HostCosts
    from paceline.kernels.mlp import NUM_MEMBERS, Ensemble

    small = Ensemble(
        ops=("_softmax",),
        mean=torch.ones(2),
        scale=torch.ones(2),
        low=torch.ones(2),
        high=torch.ones(2),
        weights=(torch.ones(NUM_MEMBERS, 3, 2), torch.ones(NUM_MEMBERS, 2, 1)),
        biases=(torch.ones(NUM_MEMBERS, 1, 2), torch.ones(NUM_MEMBERS, 1, 1)),
        residual=0.1,
    )
    host = HostCosts(dispatch_s={"relu": 1e-6})
    model = FittedModel(device=load_device("v100"), ensembles={"softmax": small}, host=host)
    model.save(folder / "seed.model.safetensors")
    return (folder / "seed.model.safetensors").read_bytes()


def _checkpoint(folder: Path) -> Target:
    """The smallest file of a checkpoint that describes it, whatever it is called."""
    import torch

    import paceline

    model = torch.nn.Linear(2, 1)
    # Without a job: this process must not be left with a process group.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pace = paceline.attach(model, optimizer, "sync", enabled=False)
    pace.save(folder / "checkpoint")
    files = [path for path in (folder / "checkpoint").rglob("*") if path.is_file()]
    texts = [path for path in files if path.suffix == ".json"] or files
    marker = min(texts, key=lambda path: path.stat().st_size)
    content = marker.read_bytes()

    def load(data: bytes) -> None:
        marker.write_bytes(data)
        try:
            pace.load(folder / "checkpoint")
        finally:
            marker.write_bytes(content)

    allowed = (ValueError, paceline.CheckpointError)
    return Target(
        name="checkpoint",
        parse=load,
        seeds=[content],
        tokens=('"nodes"', "[[0]]"),
        allowed=allowed,
    )
