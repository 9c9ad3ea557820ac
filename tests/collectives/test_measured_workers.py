"""How workers slow each other down, measured in real jobs; what comes out, not how fast."""

from __future__ import annotations

from jobs import run_job
from paceline.cluster import dump_cluster, load_cluster, parse_cluster
from paceline.teams import Workers
from paceline.teams.measured_links import measured_cluster
from paceline.teams.measured_workers import MeasuredWorkers, measure_workers


def test_all_workers_hear_the_same_and_a_cluster_takes_it_over() -> None:
    first, *others = run_job(measure_workers, nodes=(2, 1))
    assert all(other == first for other in others)
    assert first.slowdown >= 1.0
    assert 0 <= first.inside_interference < 1
    assert 0 <= first.between_interference < 1
    cluster = measured_cluster(load_cluster("local"), (2, 1), [], workers=first)
    assert {node.slowdown for node in cluster.nodes} == {first.slowdown}
    assert {node.between.interference for node in cluster.nodes} == {first.between_interference}
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


def measure(workers: Workers) -> MeasuredWorkers:
    return measure_workers(workers)


def test_one_worker_has_nobody_in_its_way() -> None:
    (only,) = run_job(measure, nodes=(1,))
    assert only.inside_interference == only.between_interference == 0
