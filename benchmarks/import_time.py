"""What ``import paceline`` costs on top of ``import torch``, in fresh interpreters.

python benchmarks/import_time.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

NUM_INTERPRETERS = 7
BAR_S = 0.1

SCRIPT = """
import json, time
start = time.perf_counter()
import torch
after_torch = time.perf_counter()
import paceline
after_paceline = time.perf_counter()
for name in paceline.__all__:
    getattr(paceline, name)
after_names = time.perf_counter()
print(json.dumps([after_torch - start, after_paceline - after_torch, after_names - after_paceline]))
"""


def measure() -> list[float]:
    """Seconds for torch, for paceline after it, and for all of paceline's public names."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    times: list[float] = json.loads(done.stdout)
    return times


def main() -> int:
    measure()  # fills the file cache, and writes the byte code of a fresh clone
    rounds = [measure() for _ in range(NUM_INTERPRETERS)]
    torch_s, paceline_s, names_s = (statistics.median(times) for times in zip(*rounds, strict=True))
    result = {
        "torch_s": round(torch_s, 4),
        "paceline_s": round(paceline_s, 4),
        "public_names_s": round(names_s, 4),
        "bar_s": BAR_S,
        "within_bar": paceline_s <= BAR_S,
    }
    print(json.dumps(result, indent=2))
    return 0 if result["within_bar"] else 1


if __name__ == "__main__":
    sys.exit(main())
