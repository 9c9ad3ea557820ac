"""``paceline measure``: measures this machine and the links of the job it runs in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from paceline.cli import frame, step_options

if TYPE_CHECKING:
    from paceline.cluster import Cluster
    from paceline.measure.links import MeasuredLink
    from paceline.steps import Step

# With --quick, for each size of message.
_QUICK_S = 0.15

app = frame.new_app(help_text="Measure kernels and links, and write the results into files.")


@frame.command(
    app,
    "links",
    example="paceline measure links --workers 2 --out this-machine.toml\n"
    "srun paceline measure links --out my-cluster.toml --model resnet50 --batch 64\n"
    "paceline lab run --link 1gbit -- paceline measure links --out lab.toml",
)
@step_options.spread
def links(
    out: Annotated[Path, typer.Option("--out", help="The cluster's TOML file to write.")],
    cluster: Annotated[
        str,
        typer.Option("--cluster", help="Take names and devices from this preset or file."),
    ] = "local",
    largest: Annotated[
        str, typer.Option("--largest", help="The largest message; the smallest has 64 KiB.")
    ] = "32 MiB",
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure for seconds, less exactly.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=2, help="Start this many workers here, if no launcher did."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Compare the workers by this step: a zoo name, or module:callable."
        ),
    ] = None,
    batch: step_options.Batch = None,
    described: step_options.StepOptions = step_options.DEFAULTS,
    json: frame.JsonFlag = False,
) -> None:
    """Measure the links of the job this runs in, and write them into a cluster's file.

    Times all-reduces and broadcasts inside the nodes and between them, and fits each link's
    latency, bandwidth and efficiency. Then measures how much the workers slow each other down:
    computing at the same time, and computing while they communicate. They are compared with the
    profile of their device by some of its kernels or, with --model, by the step that you want to
    predict. Every worker of the job runs the command; the first one prints the results.
    """
    import os

    import torch
    import torch.distributed as dist

    from paceline.cluster import dump_cluster, load_cluster
    from paceline.cluster.units import parse_size
    from paceline.measure.known_step import known_step
    from paceline.measure.links import (
        SECONDS_PER_SIZE,
        SIZES_BYTES,
        measure_links,
        measured_cluster,
    )
    from paceline.measure.workers import ROUNDS, is_compared_with_profile, measure_workers
    from paceline.steps import capture_step
    from paceline.teams import find_workers
    from paceline.teams.backend import device_in_use
    from paceline.teams.launcher import find_place

    base = load_cluster(cluster)
    sizes_bytes = [size for size in SIZES_BYTES if size <= parse_size(largest)]
    if len(sizes_bytes) < 3:
        raise ValueError(f"--largest {largest} leaves too few sizes to fit: write at least 256 KiB")

    def make_step(where: str) -> Step:
        assert model is not None
        return described.load(model, batch=batch, device=where)

    if model is not None:
        capture_step(make_step("meta"))  # mistakes are reported before a job starts
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out {out}: there is no folder {out.parent}; make it first")
    place = find_place(os.environ)
    if place.num_workers == 1:
        if workers is None:
            raise ValueError(
                "a job of one worker has no link to measure: give --workers 2, or start it with"
                " torchrun, srun, mpirun or 'paceline lab run --'"
            )
        options = ["--out", str(out), "--cluster", cluster, "--largest", largest]
        options += ["--quick"] if quick else []
        if model is not None:
            options += ["--model", model, *described.arguments()]
            options += ["--batch", str(batch)] if batch is not None else []
        raise typer.Exit(_run_job(workers, [*options, *(["--json"] if json else [])]))
    if torch.cuda.is_available():
        torch.cuda.set_device(place.gpu_index % torch.cuda.device_count())
    device = base.node_kinds[0].device.name
    job = find_workers()
    step = known_step(make_step(str(device_in_use())), device) if model is not None else None
    seconds_per_size, rounds = (_QUICK_S, 1) if quick else (SECONDS_PER_SIZE, ROUNDS)
    measured = measure_links(job, sizes_bytes=sizes_bytes, seconds_per_size=seconds_per_size)
    met = measure_workers(job, device=device, step=step, rounds=rounds)
    is_profiled = step is not None or is_compared_with_profile(device)
    dist.destroy_process_group()
    if job.world.rank != 0:
        return
    result = measured_cluster(base, job.node_sizes, measured, workers=met, name=out.stem)
    out.write_text(dump_cluster(result), "utf-8")
    if json:
        frame.print_json(
            {
                "file": str(out),
                "cluster": result.to_dict(),
                "slowdown": met.slowdown,
                "links": [
                    {
                        "place": one.place,
                        **getattr(result.node_kinds[0], one.place).model_dump(mode="json"),
                        "mean_error": {
                            kind: one.mean_error_of(kind) for kind in ("all_reduce", "broadcast")
                        },
                        "samples": [vars(sample) for sample in one.samples],
                    }
                    for one in measured
                ],
            }
        )
        return
    frame.console().print(_table(measured, result))
    compared = f"as the profile of {device} says" if is_profiled else "as one alone"
    frame.console().print(
        f"when all workers compute, each takes {met.slowdown:.2f} times as long {compared}"
    )
    frame.console().print(f"written to {out}", soft_wrap=True)


def _run_job(num_workers: int, options: list[str]) -> int:
    """This command again, on workers of this machine; torchrun's exit code."""
    import os
    import subprocess
    import sys

    # torchrun's store would listen on all addresses of this machine, the lab's agent's does not.
    torchrun = [sys.executable, "-m", "paceline.lab.agent", "--rdzv-backend=c10d"]
    torchrun += ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", "--rdzv-conf=is_host=1"]
    own = ["--module", "paceline", "measure", "links", *options]
    # torchrun announces its own default on every start unless the variable is set.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [*torchrun, "--nproc-per-node", str(num_workers), *own]
    return subprocess.run(command, env=environment, check=False).returncode


def _table(measured: list[MeasuredLink], cluster: Cluster) -> Table:
    from paceline.cluster.units import format_bandwidth, format_duration, format_size

    # Few links need it, and a terminal of 80 characters has no room for it.
    with_half = any(one.link.half_bytes for one in measured)
    columns = ["link", "latency", "bandwidth", *(["half at"] if with_half else [])]
    table = Table(*columns, "per", "takes", "busy", "error")
    table.caption = "error: of all-reduces, of broadcasts"
    for one in measured:
        link, met = one.link, getattr(cluster.node_kinds[0], one.place)
        half = format_size(link.half_bytes) if link.half_bytes else "-"
        table.add_row(
            one.place,
            format_duration(link.latency_s),
            format_bandwidth(link.bandwidth_bytes_per_s, bits=one.place == "between"),
            *([half] if with_half else []),
            "node" if link.shared else "worker",
            f"{met.interference:.0%}",
            f"x {met.busy_factor:.1f}",
            f"{one.mean_error_of('all_reduce'):.0%}, {one.mean_error_of('broadcast'):.0%}",
        )
    return table
