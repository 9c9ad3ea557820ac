"""``paceline predict``: what a training step costs, before it is run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import device_comparison, frame, report_options, step_options
from paceline.cli.options import parse_options
from paceline.cli.predict_mixed import has_unequal_nodes, show_mixed
from paceline.cli.prediction_report import trace_path
from paceline.cli.prediction_report import write as write_report
from paceline.cli.prediction_view import show_all, show_one, too_close

if TYPE_CHECKING:
    from paceline.cluster import Cluster, Device
    from paceline.rehearse import Prediction


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    frame.command(
        app,
        "predict",
        example="paceline predict resnet50 --device h200 --batch 256 --precision bf16\n"
        "paceline predict vgg16 --cluster ethernet-10g --compare --out report\n"
        "paceline predict resnet50 --cluster mixed.toml --shares balanced\n"
        "paceline predict vit-b16 --batch 64 --precision bf16 --compiled\n"
        "paceline predict resnet50 --cluster aws-p4d --nodes 4 --samples 1281167 --epochs 90\n"
        "paceline predict vit-b16 --batch 64 --precision bf16 --device a100,h100,l40s,b200\n"
        "paceline predict my_model.py:make --input 3x128x128 --classes 10 --device a100 --json",
    )(predict)


@step_options.spread
def predict(
    model: step_options.Model,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="The worker's device; default: the cluster's, the model file's, h200. Several, "
            "as a100,l40s, are compared.",
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A built-in cluster or a TOML file.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Another number of nodes.")
    ] = None,
    workers_per_node: Annotated[
        int | None,
        typer.Option(
            "--workers-per-node", "--workers", min=1, help="Another number of workers per node."
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help="How the cluster trains: `paceline strategies`.")
    ] = "sync",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="[NAME.]KEY=VALUE", help="A strategy's option."),
    ] = None,
    collective: Annotated[
        str, typer.Option("--collective", help="How teams sum: backend, tree, ring or auto.")
    ] = "backend",
    shares: Annotated[
        str | None,
        typer.Option(
            "--shares", help="On unequal nodes: equal or balanced batches; default: show both."
        ),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="All strategies.")] = False,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Samples of an epoch: cost of a run.")
    ] = None,
    epochs: step_options.Epochs = 1.0,
    jitter: step_options.Jitter = None,
    price: Annotated[
        float | None,
        typer.Option("--price", min=0, help="US dollars for a node and an hour, not the preset's."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", help="The nodes' host, as xeon-8480, or its speed, as 1.5."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Write the steps for Perfetto: *.json[.gz].")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="With torch.compile(model), on a GPU.")
    ] = False,
    batch: step_options.Batch = None,
    described: step_options.StepOptions = step_options.DEFAULTS,
    flops: Annotated[
        str | None, typer.Option("--flops", help="The device's arithmetic, as '300 TFLOP/s'.")
    ] = None,
    memory_bandwidth: Annotated[
        str | None, typer.Option("--memory-bandwidth", help="The device's, as '2 TB/s'.")
    ] = None,
    model_file: step_options.ModelFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for report.html, the data and traces.")
    ] = None,
    images: report_options.Images = None,
    json: frame.JsonFlag = False,
) -> None:
    """Predict a training step on a device, or on a cluster, that need not be here."""
    frame.collect_rarely()

    from paceline.rehearse import predict as predict_step
    from paceline.rehearse.prediction import fastest
    from paceline.rehearse.setting import find_cluster, find_kernel_models
    from paceline.strategies import comparable_strategy_names

    report_options.check(out, images)
    step = described.load(model, batch=batch)
    if device is not None and "," in device:
        _refuse_beside_devices(
            {
                "--cluster": cluster,
                "--nodes": nodes,
                "--workers-per-node": workers_per_node,
                "--option": option,
                "--shares": shares,
                "--compare": compare or None,
                "--samples": samples,
                "--jitter": jitter,
                "--price": price,
                "--host": host,
                "--trace": trace,
                "--flops": flops,
                "--memory-bandwidth": memory_bandwidth,
                "--model-file": model_file,
                "--out": out,
            }
        )
        device_comparison.show(step, device.split(","), compiled=compiled, as_json=json)
        return
    if compare and cluster is None:
        raise ValueError("--compare needs a --cluster: one worker alone needs no strategy.")
    own = _own_device(device, cluster, model_file)
    wanted = _changed(own, flops, memory_bandwidth) if own is not None else None
    chosen: str | Cluster | None = cluster
    if cluster is not None and own is None and (flops or memory_bandwidth):
        chosen = _with_changed_devices(cluster, flops, memory_bandwidth)
    chosen = _with_nodes_changed(chosen, price=price, host=host)
    names = comparable_strategy_names() if compare else [strategy]
    options = parse_options(option or [], names)
    if not 0 < epochs < math.inf or (epochs != 1.0 and samples is None):
        raise ValueError("--epochs needs --samples, the samples of one epoch, and is above 0.")
    if compare and trace is not None:
        raise ValueError("--trace is of one strategy: leave --compare out.")

    settings: dict[str, Any] = {
        "device": wanted,
        "nodes": nodes,
        "workers_per_node": workers_per_node,
        "kernel_model": model_file,
        "jitter": jitter,
        "collective": collective,
        "samples": None if samples is None else round(samples * epochs),
        "compiled": compiled,
    }
    traces = {} if out is None else {name: trace or trace_path(out, name) for name in names}

    def predicted(name: str) -> Prediction:
        return predict_step(
            step,
            cluster=chosen,
            strategy=name,
            shares=shares or "equal",  # type: ignore[arg-type]
            trace=traces.get(name, trace),
            **settings,
            **options.get(name, {}),
        )

    shows_one = shares is not None or compiled or compare or trace is not None or out is not None
    if not shows_one and has_unequal_nodes(chosen):
        assert chosen is not None
        own_options = settings | options.get(strategy, {})
        show_mixed(step, chosen, strategy, own_options, show=show_one, json=json)
        return
    predictions, left_out = [predicted(names[0])], []
    for name in names[1:]:
        try:
            predictions.append(predicted(name))
        except ValueError as problem:  # not of the step or the cluster: the first one did it
            left_out.append(f"{name} is left out: {problem}")
    if json:
        plain = [prediction.to_dict() for prediction in predictions]
        first = [prediction.strategy for prediction in fastest(predictions)]
        frame.print_json({"predictions": plain, "fastest": first} if compare else plain[0])
    elif compare:
        show_all(predictions)
    else:
        show_one(predictions[0])
    if trace is not None:
        frame.note(f"trace written to {trace}; open it at ui.perfetto.dev")
    if out is not None:
        at = find_cluster(chosen, device=wanted, nodes=nodes, workers_per_node=workers_per_node)
        (kernel_model, *_) = find_kernel_models(at, wanted, model_file).values()
        write_report(
            step,
            predictions,
            traces={
                each.strategy: traces.get(each.strategy, traces[names[0]]) for each in predictions
            },
            notes=[*left_out, *too_close(predictions)],
            kernel_model=kernel_model,
            folder=out,
            images=images,
        )
    notes = [*predictions[0].warnings, *left_out, *too_close(predictions)]
    for note in notes:
        frame.note(f"Note: {note}")


def _refuse_beside_devices(options: Mapping[str, object]) -> None:
    """Nothing that was asked for is left undone without a word."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(
            f"Several devices are compared one worker each: leave out {', '.join(given)}."
        )


def _own_device(
    name: str | None, cluster: str | None, model_file: Path | None
) -> str | Device | None:
    """The device that was asked for; the model file's; None for the cluster's own."""
    if name is not None:
        if not name.strip():
            raise ValueError("--device is empty: name one, or leave it out.")
        return name
    if model_file is not None:
        from paceline.kernels import load_model

        return load_model(model_file).device
    return "h200" if cluster is None else None


def _with_nodes_changed(
    cluster: str | Cluster | None, *, price: float | None, host: str | None
) -> str | Cluster | None:
    from paceline.cluster import load_cluster

    if price is None and host is None:
        return cluster
    if cluster is None:
        raise ValueError("--price and --host are of a cluster's nodes: give a --cluster, too.")
    changed = load_cluster(cluster) if isinstance(cluster, str) else cluster
    if price is not None:
        changed = changed.with_price(price)
    if host is None:
        return changed
    try:
        return changed.with_host(float(host))
    except ValueError:
        return changed.with_host(host)


def _with_changed_devices(cluster: str, flops: str | None, memory_bandwidth: str | None) -> Cluster:
    """The cluster, every device of which has the figures that were given."""
    from paceline.cluster import load_cluster

    own = load_cluster(cluster)
    nodes = []
    for node in own.node_kinds:
        device = _changed(node.device, flops, memory_bandwidth)
        nodes.append(node.replace(device=device))
    return own.replace(node_kinds=tuple(nodes))


def _changed(device: str | Device, flops: str | None, memory_bandwidth: str | None) -> str | Device:
    """The named device, with the figures that were given in place of its own."""
    if flops is None and memory_bandwidth is None:
        return device
    from paceline.cluster.devices import load_device
    from paceline.cluster.units import parse_bandwidth, parse_speed

    base = load_device(device) if isinstance(device, str) else device
    changes: dict[str, object] = {"name": f"{base.name}*", "source": "given on the command line"}
    if flops is not None:
        changes["flops"] = dict.fromkeys(base.flops, parse_speed(flops))
    if memory_bandwidth is not None:
        changes["memory_bandwidth_bytes_per_s"] = parse_bandwidth(memory_bandwidth)
    return base.replace(**changes)
