"""The Roofline chart of a step's kernels: how far each is under the device's roofs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.cluster import Device
from paceline.cluster.units import format_bandwidth, format_duration, format_speed
from paceline.studies.figures import csv_text, figure, guide, log_axis
from paceline.studies.page import Figure, Panel, Section, TextTable, chart_text
from paceline.studies.palette import FAMILY_STYLES, Style
from paceline.studies.roofline import RooflineKernel

_NUM_NAMED = 6
_LARGEST_PX = 44
_LEAST_SHARE = 0.001


def roofline_section(kernels: Sequence[RooflineKernel], device: Device) -> Section | None:
    """FLOP/s over FLOP per byte, the area of a kernel being its share of the time."""
    if not kernels:
        return None
    largest = sorted(kernels, key=lambda kernel: kernel.total_s, reverse=True)[:_NUM_NAMED]
    families = list(dict.fromkeys(kernel.family for kernel in kernels))
    legend = {name: FAMILY_STYLES[name] for name in FAMILY_STYLES if name in families}
    total_s = sum(kernel.total_s for kernel in kernels)
    panel = Panel(
        title=f"Kernels of one step on one {device.name}",
        figure=_figure(kernels, largest, legend, device),
    )
    return Section(
        heading="How well the kernels use the device",
        how_to_read="The larger a mark, the more time its kernels take; under the slanted roof "
        "memory bandwidth limits a kernel, under a flat one arithmetic, and the distance to the "
        "roof is what it leaves unused.",
        views={"": (panel,)},
        csv=_csv(kernels, total_s),
        legend={name.replace("_", " "): style for name, style in legend.items()},
        table=_largest(largest, total_s),
    )


def _figure(
    kernels: Sequence[RooflineKernel],
    largest: Sequence[RooflineKernel],
    legend: dict[str, Style],
    device: Device,
) -> Figure:
    intensities = [kernel.intensity for kernel in kernels]
    # A kernel that takes next to no time is a dot that nobody sees; it does not stretch the axis.
    total_s = sum(kernel.total_s for kernel in kernels)
    reached = [kernel.flops for kernel in kernels if kernel.total_s >= _LEAST_SHARE * total_s]
    peaks = sorted({kernel.peak_flops for kernel in kernels})
    low = min(intensities) / 3
    high = max(2 * max(intensities), 4 * peaks[-1] / device.memory_bandwidth_bytes_per_s)
    longest_s = max(kernel.total_s for kernel in kernels)
    roofs = _roofs(peaks, device, low, high)
    traces = [{**roof, "mode": "lines", "text": None} for roof in roofs]
    for family, style in legend.items():
        own = [kernel for kernel in kernels if kernel.family == family]
        traces.append(_marks(own, largest, family.replace("_", " "), style, longest_s))
    # Behind the marks their names could not be read.
    traces += [{**roof, "mode": "text"} for roof in roofs]
    return figure(
        traces,
        height=440,
        xaxis=log_axis("FLOP per byte", [low, high]),
        yaxis=log_axis("FLOP/s reached", [min(reached) / 2, 4 * peaks[-1]], text=format_speed),
    )


def _roofs(peaks: Sequence[float], device: Device, low: float, high: float) -> list[dict[str, Any]]:
    bandwidth = device.memory_bandwidth_bytes_per_s
    ridge = peaks[-1] / bandwidth
    names = {
        peak: "/".join(name for name, flops in device.flops.items() if flops == peak)
        for peak in peaks
    }
    memory = guide(
        np.array([low, ridge]),
        np.array([low, ridge]) * bandwidth,
        text=[f"memory, {format_bandwidth(bandwidth)}", ""],
        textposition="top right",
    )
    flat = [
        guide(
            np.array([peak / bandwidth, high]),
            np.array([peak, peak]),
            text=["", f"{names[peak] or 'arithmetic'}, {format_speed(peak)}"],
            textposition="top left",
        )
        for peak in peaks
    ]
    return [memory, *flat]


def _marks(
    kernels: Sequence[RooflineKernel],
    largest: Sequence[RooflineKernel],
    family: str,
    style: Style,
    longest_s: float,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": family,
        "legendgroup": chart_text(family),
        "x": [kernel.intensity for kernel in kernels],
        "y": [kernel.flops for kernel in kernels],
        "text": [str(largest.index(kernel) + 1) if kernel in largest else "" for kernel in kernels],
        "textfont": {"color": style.ink, "size": 12},
        "customdata": [
            [
                chart_text(kernel.title),
                f"{kernel.count:,} × {format_duration(kernel.seconds)}",
            ]
            for kernel in kernels
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} per step<br>"
        "%{x:.3g} FLOP per byte, %{y:.3s}FLOP/s<extra>%{fullData.name}</extra>",
        "marker": {
            "color": style.colour,
            "symbol": style.symbol,
            "opacity": 0.8,
            "sizemode": "area",
            "size": [kernel.total_s for kernel in kernels],
            "sizeref": 2 * longest_s / _LARGEST_PX**2,
            "sizemin": 2,
        },
    }


def _largest(largest: Sequence[RooflineKernel], total_s: float) -> TextTable:
    return TextTable(
        header=("", "share of time", "per step", "kernel", "family"),
        rows=[
            (
                str(place),
                f"{kernel.total_s / total_s:.1%}",
                f"{kernel.count:,} × {format_duration(kernel.seconds)}",
                kernel.title,
                kernel.family.replace("_", " "),
            )
            for place, kernel in enumerate(largest, start=1)
        ],
    )


def _csv(kernels: Sequence[RooflineKernel], total_s: float) -> str:
    return csv_text(
        ("kernel", "family", "count", "flop", "bytes", "seconds", "peak_flops", "share_of_time"),
        (
            (
                kernel.title,
                kernel.family,
                kernel.count,
                kernel.flop,
                kernel.num_bytes,
                kernel.seconds,
                kernel.peak_flops,
                kernel.total_s / total_s,
            )
            for kernel in kernels
        ),
    )
