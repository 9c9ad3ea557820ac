"""Packing parameters for an exchange against a plain copy of as many bytes.

python benchmarks/packing.py --out packing.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from paceline.strategies.layout import lay_out
from paceline.zoo import build_model


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--repeats", type=int, default=51)
    parser.add_argument("--out", type=Path, default=Path("packing.json"))
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    (layout,) = lay_out(build_model(arguments.model).to(device).parameters())
    flat = layout.pack()
    other = flat.clone()
    copy_s = seconds(lambda: other.copy_(flat), device, arguments.repeats)
    pack_s = seconds(lambda: layout.pack(out=flat), device, arguments.repeats)
    unpack_s = seconds(lambda: layout.unpack(flat), device, arguments.repeats)
    result = {
        "benchmark": "packing",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "model": arguments.model,
        "bytes": flat.nbytes,
        "copy_s": copy_s,
        "pack_s": pack_s,
        "unpack_s": unpack_s,
        "pack_over_copy": pack_s / copy_s,
        "unpack_over_copy": unpack_s / copy_s,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"pack / copy = {pack_s / copy_s:.2f}, unpack / copy = {unpack_s / copy_s:.2f}")


if __name__ == "__main__":
    main()
