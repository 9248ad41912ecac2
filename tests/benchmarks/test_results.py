from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks import peer
from benchmarks.bars import BARS, speed_up
from benchmarks.plots import PICTURES, draw
from benchmarks.processes import Cpu, RoleUsage
from benchmarks.results import WARM, Measurement, Results, load, read_measurement, write_measurement
from benchmarks.run import keep_others, list_cases, main, run_case
from benchmarks.snapshots import HANDLE_KEYS, SHAPES, TINY, Snapshots
from benchmarks.stages import Stage, read_report
from benchmarks.tables import tabulate
from benchmarks.works import OTHER, WORKS

if TYPE_CHECKING:
    from pathlib import Path

KEYS = 5_000_000
ROLES = {
    "driver": RoleUsage(Cpu(1.0, 0.5), 100 << 20, 90 << 20, 1),
    "jvm": RoleUsage(Cpu(4.0, 0.5), 900 << 20, 900 << 20, 2),
    "workers": RoleUsage(Cpu(2.0, 0.0), 800 << 20, 500 << 20, 3),
}


def took(work: str, seconds: float, *, keys: int = KEYS, run: int = 0, snapshot: str = "canonical") -> Measurement:
    usage = {
        role: replace(usage, cpu=Cpu(usage.cpu.user * seconds / 8, usage.cpu.system * seconds / 8))
        for role, usage in ROLES.items()
    }
    return Measurement(
        work, snapshot, keys, "cold", run, seconds / 2, Cpu(seconds, 0.0), 10, 1 << 30, 4096, 0, usage, 90 * keys
    )


def test_a_measurement_is_one_line(tmp_path: Path) -> None:
    measurements = [took("spark-aggregate", 8.0), replace(took("spark-aggregate", 3.0), mode=WARM, roles={})]
    file = tmp_path / "results.jsonl"
    file.write_text("".join(map(write_measurement, measurements)))
    assert len(file.read_text().splitlines()) == 2
    assert load(file).measurements == measurements


def test_seconds_are_rounded_in_the_file() -> None:
    assert read_measurement(write_measurement(took("x", 1 / 3))).cpu == Cpu(0.3333, 0.0)


def test_the_net_time_is_the_median_less_that_of_the_tiny_snapshot() -> None:
    seconds = [9.0, 30.0, 8.0]
    runs = [took("spark-aggregate", each, run=run) for run, each in enumerate(seconds)]
    results = Results([*runs, took("spark-aggregate", 5.0, keys=TINY)])
    spread = results.cpu("spark-aggregate", "canonical")
    assert spread is not None
    assert (spread.median, spread.low, spread.high) == (9.0, 8.0, 30.0)
    assert results.net_cpu("spark-aggregate", "canonical") == 4.0
    assert results.net_wall("spark-aggregate", "canonical") == 2.0


def test_the_net_time_is_not_less_than_that_of_a_warm_session() -> None:
    cold = [took("spark-aggregate", 9.0), took("spark-aggregate", 5.0, keys=TINY)]
    warm = [replace(took("spark-aggregate", each), mode=WARM) for each in (3.0, 6.0)]
    assert [Results([*cold, each]).net_cpu("spark-aggregate", "canonical") for each in warm] == [4.0, 6.0]


def test_there_is_no_net_time_without_a_tiny_run() -> None:
    assert Results([took("spark-aggregate", 8.0)]).net_cpu("spark-aggregate", "canonical") is None


def test_the_ratio_to_the_peer_compares_net_times() -> None:
    results = Results([took("spark-aggregate", 9.0), took("spark-aggregate", 5.0, keys=TINY)])
    assert speed_up(results, "spark-aggregate", "canonical") == pytest.approx((42.2 - 4.5) / 4.0)


def test_there_is_no_ratio_for_a_size_that_the_peer_was_not_measured_with() -> None:
    results = Results([took("spark-aggregate", 9.0, keys=3_000_000), took("spark-aggregate", 5.0, keys=TINY)])
    assert speed_up(results, "spark-aggregate", "canonical") is None


def test_the_largest_worker_is_no_jvm() -> None:
    assert took("spark-aggregate", 1.0).largest_worker == 500 << 20


def make_results() -> Results:
    measurements = []
    for work in WORKS:
        for snapshot in work.snapshots:
            keys = HANDLE_KEYS if snapshot == "handles" else KEYS
            measurements += [took(work.name, 9.0, keys=each, snapshot=snapshot) for each in (keys, 10 * keys)]
            measurements += [took(work.name, 5.0, keys=TINY, snapshot=snapshot)]
    return Results(measurements)


def test_throughput_is_bytes_per_net_second_and_unknown_where_start_up_is_all() -> None:
    results = Results([took("spark-aggregate", 9.0), took("spark-aggregate", 5.0, keys=TINY)])
    assert results.throughput("spark-aggregate", "canonical") == 90 * KEYS / 2.0
    results = Results([took("cli-rescale", 5.0), took("cli-rescale", 5.0, keys=TINY)])
    assert results.throughput("cli-rescale", "canonical") is None


def test_workers_decode_and_hand_over() -> None:
    pairs = (("spark-aggregate", 9.0, 5.0), ("library-decode", 1.4, 1.0))
    results = Results(
        [took(work, each, keys=keys) for work, *both in pairs for each, keys in zip(both, (KEYS, TINY), strict=True)]
    )
    # Of 4 net seconds workers have one: 0.4 are what decoding takes.
    assert "| Spark: read both states, aggregate | canonical | 19% | 56% | 25% |  | 10% | 15% |" in tabulate(results)


def test_every_bar_is_measured_by_some_work() -> None:
    results = make_results()
    assert [bar.title for bar in BARS if bar.measure(results) is None] == []


def test_the_tables_show_works_and_bars_reached_and_missed() -> None:
    results = Results(
        [
            took("library-aggregate", 2.0),
            took("library-aggregate", 1.0, keys=TINY),
            took("spark-table", 45.0),
            took("spark-table", 5.0, keys=TINY),
        ]
    )
    text = tabulate(results)
    assert "| decode all columns and aggregate | canonical | 5,000,000 | 2.00 | 1.00 | 1.00 | 900 | 500 | 900 |" in text
    assert "| library, both states into Arrow, aggregate, against the peer | ≥ 15 x | 37.70 | reached |" in text
    assert "| Spark, one table, a row per key, against the peer | ≥ 4 x | 0.94 | MISSED |" in text
    assert "| one table, a row per key | canonical | 19% | 56% | 25% |" not in text
    assert "| Spark: one table, a row per key | canonical | 19% | 56% | 25% |" in text
    assert "not measured" in text


@pytest.mark.parametrize("results", [Results([]), make_results()], ids=["none", "all"])
def test_pictures_come_out_of_stored_results(results: Results, tmp_path: Path) -> None:
    paths = draw(results, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(PICTURES)
    for path in paths:
        assert path.read_text().lstrip().startswith("<?xml")
    assert ("parallelism only" in (tmp_path / "bars.svg").read_text()) == bool(results.measurements)


def test_the_peer_is_compared_with_works_that_there_are() -> None:
    assert set(peer.SAME_WORK) <= {work.name for work in WORKS}


def test_works_run_on_shapes_that_there_are() -> None:
    assert {snapshot for work in WORKS for snapshot in work.snapshots} <= set(SHAPES)
    assert {*OTHER, *OTHER.values()} <= set(SHAPES)
    assert len({work.name for work in WORKS}) == len(WORKS)


def test_a_case_is_measured_tiny_large_and_warm() -> None:
    (work,) = (work for work in WORKS if work.name == "spark-aggregate")
    cases = list_cases([work], ["canonical"], KEYS, huge=True)
    assert [(case.keys, case.mode) for case in cases] == [
        (TINY, "cold"),
        (KEYS, "cold"),
        (10 * KEYS, "cold"),
        (KEYS, "warm"),
    ]


def test_what_a_program_tells_is_read_from_its_last_line() -> None:
    output = 'noise\n{"rows": 4, "stages": [{"cpu": {"user": 1.5, "system": 0.5}, "wall": 2.5}]}\n'
    assert read_report(output) == (4, [Stage(Cpu(1.5, 0.5), 2.5)])
    assert read_report("new savepoint: x\n") == (None, [])
    assert read_report("") == (None, [])


def test_results_of_other_works_stay_when_some_are_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    kept, gone = took("spark-table", 1.0), took("library-count", 1.0)
    file.write_text(write_measurement(kept) + write_measurement(gone))
    (work,) = (work for work in WORKS if work.name == "library-count")
    keep_others(file, list_cases([work], ["canonical"], KEYS, huge=False))
    assert load(file).measurements == [kept]


def test_a_work_is_run_on_a_snapshot_that_is_made_for_it(tmp_path: Path) -> None:
    made: list[str] = []
    (work,) = (work for work in WORKS if work.name == "library-count")
    (case, *_) = list_cases([work], ["canonical"], KEYS, huge=False)
    measurement = run_case(case, Snapshots(tmp_path, made.append), 0)
    assert measurement.rows == 2 * TINY
    assert measurement.cpu.total > 0
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"canonical-{TINY}"]


def test_a_work_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["run", "--snapshots", str(tmp_path), "--works", "spark-fly"])
    with pytest.raises(SystemExit, match="spark-fly"):
        main()
