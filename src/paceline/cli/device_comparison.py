"""One step on several devices, side by side: how fast, how sure, and for how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.cli import frame
from paceline.cluster import Price, cheapest_price, load_device

if TYPE_CHECKING:
    from paceline.rehearse import Prediction
    from paceline.steps import Step


@dataclass(frozen=True)
class Offer:
    """A prediction for one device, and what the device costs."""

    prediction: Prediction
    price: Price | None

    @property
    def dollars_per_million(self) -> float | None:
        """US dollars for a million samples, where the device has a list price."""
        if self.price is None:
            return None
        seconds = 1e6 / self.prediction.throughput_per_s
        return self.price.per_hour * seconds / 3600

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return self.prediction.to_dict() | {
            "price_per_hour": None if self.price is None else self.price.per_hour,
            "price_cluster": None if self.price is None else self.price.cluster,
            "dollars_per_million_samples": self.dollars_per_million,
        }


def show(step: Step, devices: list[str], *, compiled: bool, as_json: bool) -> None:
    """Predict a step on each device and print the results together.

    Args:
        step: What is trained, by one worker.
        devices: The names of the devices.
        compiled: Whether the model is compiled.
        as_json: Print one JSON object instead of a table.
    """
    from paceline.rehearse import predict

    names = list(dict.fromkeys(name.strip() for name in devices if name.strip()))
    if not names:
        raise ValueError("--device names no device: write it as a100,h100.")
    for name in names:
        load_device(name)  # what is wrong is said before work begins
    offers = [
        Offer(predict(step, device=name, compiled=compiled), cheapest_price(name)) for name in names
    ]
    cheapest = _cheapest(offers)
    if as_json:
        frame.print_json(
            {
                "predictions": [offer.to_dict() for offer in offers],
                "cheapest": None if cheapest is None else cheapest.prediction.device,
            }
        )
    else:
        _print_table(offers, cheapest)
    for note in _notes(offers):
        frame.note(f"Note: {note}")


def _notes(offers: list[Offer]) -> list[str]:
    """The warnings, once for all devices that they say the same of."""
    found: dict[str, list[str]] = {}
    for offer in offers:
        for warning in offer.prediction.warnings:
            name = offer.prediction.device
            rest = warning.removeprefix(f"{name} ").removeprefix("was ")
            found.setdefault(rest, []).append(name if rest != warning else "")
    return [
        f"{', '.join(filter(None, names))}: {rest}".lstrip(": ") for rest, names in found.items()
    ]


def _cheapest(offers: list[Offer]) -> Offer | None:
    priced = [offer for offer in offers if offer.prediction.fits and offer.price is not None]
    return min(priced, key=lambda offer: offer.dollars_per_million or 0.0, default=None)


def _print_table(offers: list[Offer], cheapest: Offer | None) -> None:
    from rich.table import Table

    from paceline.cluster.units import format_duration, format_size

    first = offers[0].prediction
    title = f"{first.model}, batch {first.batch}, {first.precision}, one worker"
    table = Table("device", "step", "±", "samples/s", "memory", "USD/h", "USD/million", title=title)
    for offer in sorted(offers, key=lambda each: each.prediction.step_s):
        found = offer.prediction
        dollars = offer.dollars_per_million
        table.add_row(
            found.device,
            format_duration(found.step_s),
            f"{found.uncertainty:.0%}",
            f"{found.throughput_per_s:,.0f}",
            format_size(found.memory_bytes) if found.fits else "does not fit",
            "-" if offer.price is None else f"{offer.price.per_hour:.2f}",
            "-" if dollars is None else f"{dollars:,.2f}",
        )
    screen = frame.console()
    screen.print(table)
    limits: dict[str, list[str]] = {}
    for offer in offers:
        limits.setdefault(offer.prediction.bottleneck, []).append(offer.prediction.device)
    for limit, names in limits.items():
        screen.print(f"limited by {limit}: {', '.join(names)}")
    if cheapest is not None and cheapest.price is not None:
        screen.print(
            f"cheapest: {cheapest.prediction.device}, {cheapest.dollars_per_million:,.2f} US "
            f"dollars per million samples at the list price of {cheapest.price.cluster}"
        )
        rivals = ", ".join(_as_cheap(offers, cheapest))
        if rivals:
            screen.print(f"within the ranges, as cheap: {rivals}")


def _as_cheap(offers: list[Offer], cheapest: Offer) -> list[str]:
    """The devices that may cost as little, if both predictions are as far off as they say."""

    def bounds(offer: Offer) -> tuple[float, float]:
        dollars, doubt = offer.dollars_per_million or 0.0, offer.prediction.uncertainty
        return dollars * (1 - doubt), dollars * (1 + doubt)

    return [
        offer.prediction.device
        for offer in offers
        if offer is not cheapest
        and offer.price is not None
        and offer.prediction.fits
        and bounds(offer)[0] < bounds(cheapest)[1]
    ]
