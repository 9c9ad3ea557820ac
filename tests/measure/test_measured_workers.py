"""How workers slow each other down, measured in real jobs; what comes out, not how fast."""

from __future__ import annotations

import time

import pytest

from jobs import run_job
from paceline.cluster import dump_cluster, load_cluster, parse_cluster
from paceline.measure import contention
from paceline.measure import workers as measured_workers
from paceline.measure.known_step import known_step
from paceline.measure.links import measured_cluster
from paceline.measure.reference import reference_kernels
from paceline.measure.workers import (
    KnownStep,
    MeasuredWorkers,
    _needs_of_profile,
    measure_workers,
)
from paceline.rehearse import predict
from paceline.steps import zoo_step
from paceline.teams import Workers


def hurry() -> None:
    """Measure for shorter, in this process: how precisely is not what is tested here."""
    measured_workers._PROBE_S = 0.1
    measured_workers._TOGETHER_S = 0.3
    contention._COMMUNICATE_S = 0.1
    contention._COMPUTE_S = 0.1


def measure_with_profile(workers: Workers) -> MeasuredWorkers:
    hurry()
    return measure_workers(workers, device="cpu-core")


def test_all_workers_hear_the_same_and_a_cluster_takes_it_over() -> None:
    first, *others = run_job(measure_with_profile, nodes=(2, 1))
    assert all(other == first for other in others)
    assert first.slowdown > 0
    assert first.inside is not None
    assert first.between is not None
    assert first.lone is not None
    for met in (first.inside, first.between, first.lone):
        assert 0 <= met.interference < 1
        assert met.busy_factor >= 1
    cluster = measured_cluster(load_cluster("local"), (2, 1), [], workers=first)
    assert {node.slowdown for node in cluster.node_kinds} == {first.slowdown}
    for node in cluster.node_kinds:
        assert node.inside.interference == first.inside.interference
        assert node.inside.busy_factor == first.inside.busy_factor
        assert node.between.interference == first.between.interference
        assert node.between.busy_factor == first.between.busy_factor
        assert node.between.lone_interference == first.lone.interference
        assert node.between.lone_busy_factor == first.lone.busy_factor
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


def measure(workers: Workers) -> MeasuredWorkers:
    return measure_workers(workers)


def test_one_worker_has_nobody_in_its_way() -> None:
    (only,) = run_job(measure, nodes=(1,))
    assert only.slowdown >= 0.9  # as one alone, which it is
    assert only.inside is only.between is only.lone is None


def measure_by_a_step(workers: Workers) -> MeasuredWorkers:
    """By a step of 20 ms on one worker and 40 ms on the other, said to take 10 ms."""
    hurry()
    seconds = 0.02 * (1 + workers.world.rank)
    step = KnownStep(run=lambda: time.sleep(seconds), expected_s=0.01)
    return measure_workers(workers, step=step)


def test_workers_are_compared_by_a_step_that_really_runs() -> None:
    first, second = run_job(measure_by_a_step, nodes=(2,))
    assert first == second
    # All wait for the slower one. A sleep may take longer than it should, but never less.
    assert 3.99 <= first.slowdown < 8


def train_a_known_step(workers: Workers) -> tuple[float, float]:
    hurry()
    step = known_step(zoo_step("mlp", batch=8, device="cpu"), "cpu-core")
    return step.expected_s, measure_workers(workers, step=step).slowdown


def test_a_zoo_models_step_is_expected_to_take_what_is_predicted() -> None:
    ((expected_s, slowdown),) = run_job(train_a_known_step, nodes=(1,))
    assert expected_s == pytest.approx(predict(zoo_step("mlp", batch=8), device="cpu-core").step_s)
    assert slowdown > 0


def stretch_what_takes_three_times_as_long(workers: Workers) -> float:
    """Communication that takes 50 ms by itself, and 150 ms once somebody computes."""
    is_computing = False

    def unit() -> None:
        nonlocal is_computing
        is_computing = True
        time.sleep(0.01)

    def communicate() -> float:
        begun = time.perf_counter()
        time.sleep(0.05)
        if is_computing:
            time.sleep(0.1)
        return time.perf_counter() - begun

    return contention._stretched(unit, communicate, workers)


def test_communication_that_takes_longer_beside_computing_is_found_out() -> None:
    (factor,) = run_job(stretch_what_takes_three_times_as_long, nodes=(1,))
    # 3, unless a busy machine lets one of the sleeps take longer.
    assert 2 < factor < 6


def needs_of_two_profiles(workers: Workers) -> tuple[float, float]:
    """Against the real profile, and against one whose times are a thousandth of it."""
    reference = reference_kernels("cpu-core")
    quicker = {kernel: seconds / 1000 for kernel, seconds in reference.items()}
    return _needs_of_profile(reference, workers, 3), _needs_of_profile(quicker, workers, 3)


def test_a_quicker_profile_makes_slower_workers() -> None:
    ((real, against_quicker),) = run_job(needs_of_two_profiles, nodes=(1,))
    assert against_quicker > 100 * real
