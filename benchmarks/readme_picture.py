"""Draw the README's picture: predicted step time by strategy, VGG-16 on eight workstations.

python benchmarks/readme_picture.py --out docs/assets/strategies.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import paceline
from paceline.strategies import comparable_strategy_names

MODEL, CLUSTER = "vgg16", "ethernet-10g"
TITLE = "VGG-16, batch 32, on 8 workstations with an RTX 4090 and 10 Gbit/s Ethernet"
LABEL_X, BAR_X, BAR_WIDTH, ROW = 150, 160, 440, 30
# Readable on a light and on a dark page.
COMPUTE, COMMUNICATION, TEXT = "#0f9d8a", "#e08a3c", "#7a8288"


def predicted() -> list[paceline.Prediction]:
    """Every strategy, the fastest first."""
    step = paceline.load_step(MODEL)
    found = [
        paceline.predict(step, cluster=CLUSTER, strategy=strategy)
        for strategy in comparable_strategy_names()
    ]
    return sorted(found, key=lambda each: each.step_s)


def drawn(predictions: Sequence[paceline.Prediction]) -> str:
    """The picture as SVG: one bar per strategy, computing and waiting stacked."""
    longest_s = max(each.step_s for each in predictions)
    height = 84 + ROW * len(predictions)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" '
        f'font-family="sans-serif" font-size="14" fill="{TEXT}">',
        f"<title>Predicted time per training step: {TITLE}</title>",
        '<text x="10" y="22" font-weight="bold">Predicted time per training step</text>',
        f'<text x="10" y="42" font-size="12">{TITLE}</text>',
    ]
    for row, each in enumerate(predictions):
        y = 56 + ROW * row
        compute = BAR_WIDTH * (each.compute_s + each.host_s) / longest_s
        waiting = BAR_WIDTH * each.exposed_communication_s / longest_s
        lines += [
            f'<text x="{LABEL_X}" y="{y + 15}" text-anchor="end">{each.strategy}</text>',
            f'<rect x="{BAR_X}" y="{y}" width="{compute:.1f}" height="20" fill="{COMPUTE}"/>',
            f'<rect x="{BAR_X + compute:.1f}" y="{y}" width="{waiting:.1f}" height="20" '
            f'fill="{COMMUNICATION}"/>',
            f'<text x="{BAR_X + compute + waiting + 8:.1f}" y="{y + 15}">'
            f"{each.step_s * 1e3:.0f} ms</text>",
        ]
    y = height - 14
    lines += [
        f'<rect x="{BAR_X}" y="{y - 10}" width="12" height="12" fill="{COMPUTE}"/>',
        f'<text x="{BAR_X + 18}" y="{y}" font-size="12">computing</text>',
        f'<rect x="{BAR_X + 100}" y="{y - 10}" width="12" height="12" fill="{COMMUNICATION}"/>',
        f'<text x="{BAR_X + 118}" y="{y}" font-size="12">waiting for the network</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("docs/assets/strategies.svg"))
    arguments = parser.parse_args()
    arguments.out.write_text(drawn(predicted()), encoding="utf-8")


if __name__ == "__main__":
    main()
