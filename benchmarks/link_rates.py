"""How near the lab's links come to the rate asked for, from 50 Mbit/s to 1 Gbit/s.

python benchmarks/link_rates.py
"""

from __future__ import annotations

import json
import sys

from paceline.lab.check import TOLERANCE, check_links
from paceline.lab.layout import lay_out

RATES = ("50mbit", "100mbit", "200mbit", "500mbit", "1gbit")


def main() -> int:
    worst = {
        rate: max((link.deviation for link in check_links(lay_out(nodes=2, link=rate))), key=abs)
        for rate in RATES
    }
    within_bar = all(abs(deviation) <= TOLERANCE for deviation in worst.values())
    print(json.dumps({"worst_deviation": worst, "bar": TOLERANCE, "within_bar": within_bar}))
    return 0 if within_bar else 1


if __name__ == "__main__":
    sys.exit(main())
