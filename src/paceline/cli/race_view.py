"""How a race looks in a terminal: bars while it runs, a table when it is over."""

from __future__ import annotations

from typing import Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from paceline.cli import frame


class LiveRace:
    """What the race does now, and a bar for each entry, on standard error."""

    def __init__(self, names: list[str], num_steps: int, *, is_shown: bool = True) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}", markup=False),
            console=frame.stderr_console(),
            refresh_per_second=4,  # it runs beside training
            disable=not is_shown,
        )
        self._num_steps = num_steps
        self._names = names
        self._tasks: dict[str, Any] = {}
        self._doing = ""

    def __enter__(self) -> Self:
        self._progress.start()
        for name in self._names:
            self._tasks[name] = self._progress.add_task(name, total=self._num_steps, news="")
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.stop()

    def update(self, state: dict[str, Any]) -> None:
        """Show what the race says of itself.

        Args:
            state: What it does, and what is known of each entry.
        """
        if state["doing"] != self._doing:
            self._doing = state["doing"]
            # Bars tell of training; what comes before is told in a line each.
            if not self._doing.startswith("training"):
                self._progress.console.print(f"race: {self._doing}", style="dim")
        for name, news in state["entries"].items():
            task = self._tasks[name]
            self._progress.update(task, completed=news.get("steps", 0), news=_news_text(news))


def _news_text(news: dict[str, Any]) -> str:
    texts = []
    if news.get("prediction") is not None:
        texts.append(f"predicted {milliseconds(news['prediction']['step_s'])}")
    if news.get("step_s") is not None:
        texts.append(f"measured {milliseconds(news['step_s'])}")
    if news.get("accuracy") is not None:
        texts.append(f"accuracy {news['accuracy']:.1%}")
    return ", ".join(texts)


def milliseconds(seconds: float) -> str:
    """A step's time for people."""
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def race_table(results: list[dict[str, Any]], *, title: str, target: float) -> Table:
    """The results, entry by entry.

    Args:
        results: What the race found.
        title: What raced where.
        target: The accuracy whose time was taken.
    """
    table = Table(title=title)
    table.add_column("strategy")
    columns = ("predicted", "measured", "waiting", "between nodes", "accuracy")
    for header in (*columns, f"time to {target:.0%}"):
        table.add_column(header, justify="right")
    for result in results:
        reached, sent = result["time_to_target_s"], result["bytes_between_nodes"]
        expected = result["prediction"]
        table.add_row(
            result["name"],
            "–" if expected is None else milliseconds(expected["step_s"]),
            milliseconds(result["step_s"]),
            f"{result['waiting_share']:.0%}",
            "not counted" if sent is None else f"{sent / 1e6:.1f} MB",
            f"{result['accuracy']:.1%}",
            "–" if reached is None else f"{reached:.1f} s",
        )
    return table
