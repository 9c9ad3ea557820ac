"""Links measured in real jobs over Gloo."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from jobs import run_job
from lab_machine import run_cli
from paceline.cluster import dump_cluster, load_cluster, parse_cluster
from paceline.measure.links import MeasuredLink, measure_links, measured_cluster
from paceline.teams import Workers

SIZES = (2**16, 2**17, 2**18, 2**20)


def measure(workers: Workers) -> list[MeasuredLink]:
    return measure_links(workers, sizes_bytes=SIZES)


@cache
def measured(nodes: tuple[int, ...]) -> list[list[MeasuredLink]]:
    """What every worker of such a job finds."""
    return run_job(measure, nodes=nodes)


@pytest.mark.parametrize(
    ("nodes", "places"),
    [((2, 1), ["inside", "between"]), ((2,), ["inside"]), ((1, 1), ["between"]), ((1,), [])],
)
def test_the_links_that_a_job_has(nodes: tuple[int, ...], places: list[str]) -> None:
    first, *others = measured(nodes)
    assert all(other == first for other in others)
    assert [one.place for one in first] == places
    for one in first:
        team = "node" if one.place == "inside" else "across"
        expected = [(team, kind, size) for kind in ("all_reduce", "broadcast") for size in SIZES]
        if one.place == "between" and max(nodes) > 1:
            expected += [("world", "all_reduce", size) for size in SIZES]
        assert [(each.team, each.kind, each.num_bytes) for each in one.samples] == expected
        # Between processes of one machine: slower than its memory, faster than a modem.
        assert 1e6 < one.link.bandwidth_bytes_per_s < 1e12
        assert 0 <= one.link.latency_s < 1
        num_workers = sum(nodes) if one.place == "between" else max(nodes)
        assert one.link.source.startswith(f"measured: gloo, {num_workers} workers")


def test_the_cluster_has_the_jobs_nodes_and_links_and_the_rest_of_its_base() -> None:
    first = measured((2, 1))[0]
    cluster = measured_cluster(load_cluster("local"), (2, 1), first)
    assert cluster.workers_per_node == (2, 1)
    assert cluster.description.startswith("3 workers on 2 nodes, measured by")
    assert {node.device.name for node in cluster.node_kinds} == {"cpu-core"}
    for node in cluster.node_kinds:
        assert (node.inside, node.between) == (first[0].link, first[1].link)
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


def test_the_command_starts_workers_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "this-machine.toml"
    options = ("--workers", "2", "--out", str(out), "--largest", "256 KiB", "--quick", "--json")
    done = run_cli("measure", "links", *options, "--model", "mlp", "--batch", "4")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert load_cluster(out).name == "this-machine"
    assert load_cluster(out).node_kinds[0].slowdown == said["slowdown"] > 0
    (link,) = said["links"]
    assert link["place"] == "inside"
    assert load_cluster(out).node_kinds[0].inside.latency_s == link["latency_s"]


def test_links_that_were_not_measured_stay_the_bases() -> None:
    base = load_cluster("lab-2x2")
    cluster = measured_cluster(base, (4, 4, 4), [])
    assert cluster.workers_per_node == (4, 4, 4)
    assert len(cluster.node_kinds) == 1
    assert cluster.node_kinds[0].inside == base.node_kinds[0].inside
    assert cluster.node_kinds[0].name == base.node_kinds[0].name
