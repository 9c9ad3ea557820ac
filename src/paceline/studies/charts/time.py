"""Where the time of a step goes, over the number of workers."""

from __future__ import annotations

from paceline.studies.charts.curves import (
    SCALING_TITLES,
    SHARED_COLUMNS,
    along,
    csv_of,
    hover_value,
    scalings_of,
    strategies_of,
    workers_axis,
)
from paceline.studies.figures import figure, line, linear_axis
from paceline.studies.page import Figure, Panel, Section
from paceline.studies.palette import TIME_STYLES
from paceline.studies.points import Scaling
from paceline.studies.study import Study
from paceline.studies.table import StudyTable

_PARTS = {name: TIME_STYLES[name] for name in ("compute", "host", "communication and waiting")}


def time_section(study: Study) -> Section | None:
    """Device, host and exposed communication, by strategy; None without workers varied."""
    scalings = scalings_of(study)
    if not scalings:
        return None
    rows = study.table.where(sweep="workers")
    return Section(
        heading="Where the time goes",
        how_to_read="The upper part is communication that no computation hides, and waiting for "
        "slower workers, below it the device waits for its host; with a constant global batch, as "
        "a share of the step.",
        views={
            strategy: [
                Panel(
                    title=SCALING_TITLES[scaling].capitalize(),
                    figure=_time_parts(study, along(study, "workers", strategy, scaling), scaling),
                )
                for scaling in scalings
            ]
            for strategy in strategies_of(study)
        },
        csv=csv_of(
            rows, *SHARED_COLUMNS, "step_s", "compute_s", "host_s", "exposed_communication_s"
        ),
        legend=_PARTS,
        is_filled=True,
    )


def _time_parts(study: Study, rows: StudyTable, scaling: Scaling) -> Figure:
    exposed, host = rows["exposed_communication_s"], rows["host_s"]
    parts = dict(zip(_PARTS, (rows["step_s"] - exposed - host, host, exposed), strict=True))
    hover = f"{hover_value('workers')}<br>%{{y:.3s}}s"
    traces = [
        {
            **line(name, _PARTS[name], rows["workers"], seconds, hover)[0],
            "mode": "lines",
            "stackgroup": "step",
            "fillcolor": _PARTS[name].faint(0.6),
            # With a constant global batch the first step dwarfs all others: shares can be seen.
            "groupnorm": "fraction" if scaling == "strong" else "",
        }
        for name, seconds in parts.items()
    ]
    seconds_axis = linear_axis("time per step", tickformat="~s", ticksuffix="s")
    shares_axis = linear_axis("share of the step", tickformat=".0%")
    return figure(
        traces,
        hovermode="x unified",
        xaxis=workers_axis(study),
        yaxis=shares_axis if scaling == "strong" else seconds_axis,
    )
