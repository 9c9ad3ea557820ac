"""``paceline device``: the devices that predictions know, with their figures and sources."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from paceline.cli.frame import JsonFlag, command, console, new_app, print_json
from paceline.cluster import Device, cheapest_price, device_names, load_device
from paceline.cluster.units import format_bandwidth, format_size, format_speed

app = new_app(help_text="The devices paceline knows: their figures, and where these are from.")


@command(app, "list", example="paceline device list\npaceline device list --json")
def list_devices(as_json: JsonFlag = False) -> None:
    """List the built-in devices."""
    devices = [load_device(name) for name in device_names()]
    if as_json:
        print_json({"devices": [_plain(device) for device in devices]})
        return
    columns = ("name", "memory", "reads", "fp32", "16 bits", "predictions")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for device in devices:
        half = device.flops.get("bf16") or device.flops.get("fp16")
        table.add_row(
            device.name,
            format_size(device.memory_bytes),
            format_bandwidth(device.memory_bandwidth_bytes_per_s),
            format_speed(device.flops["fp32"]),
            format_speed(half) if half else "-",
            _standing(device),
        )
    console().print(table)


@command(app, "show", example="paceline device show l40s\npaceline device show b200 --json")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A built-in device.")],
    as_json: JsonFlag = False,
) -> None:
    """Show a device: its peaks, what it reaches, and where the figures are from."""
    device = load_device(name)
    if as_json:
        print_json(_plain(device))
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, value in _rows(device):
        table.add_row(label, value)
    screen = console()
    screen.print(device.name, style="bold")
    screen.print(table)


def _rows(device: Device) -> list[tuple[str, str]]:
    found = [
        ("memory", format_size(device.memory_bytes)),
        ("reads", format_bandwidth(device.memory_bandwidth_bytes_per_s)),
        *((f"computes {name}", format_speed(speed)) for name, speed in device.flops.items()),
        ("source", device.source),
    ]
    if device.multiprocessors and device.clock_ghz:
        clock = f"{device.multiprocessors} at {device.clock_ghz:g} GHz"
        found.append(("multiprocessors", f"{clock} ({device.architecture})"))
    if device.l2_bytes:
        found.append(("L2 cache", format_size(device.l2_bytes)))
    if device.products_share:
        found.append(("large products reach", f"{device.products_share:.0%} of the peak"))
    if device.sustained_share:
        found.append(("many in a row", f"{device.sustained_share:.0%} of the peak"))
    if device.fp32_share:
        found.append(("those in fp32", f"{device.fp32_share:.0%} of the peak"))
    if device.facts_source:
        found.append(("source", device.facts_source))
    price = cheapest_price(device.name)
    if price is not None:
        found.append(("price", f"{price.per_hour:.2f} USD/hour ({price.cluster})"))
    return [*found, ("predictions", _standing(device))]


def _standing(device: Device) -> str:
    from paceline.kernels import profiled_devices

    if device.name in profiled_devices():
        return "measured"
    return "transferred" if device.is_compared else "never compared"


def _plain(device: Device) -> dict[str, Any]:
    price = cheapest_price(device.name)
    return device.model_dump(mode="json") | {
        "predictions": _standing(device),
        "price_per_hour": None if price is None else price.per_hour,
        "price_cluster": None if price is None else price.cluster,
    }
