"""Java jobs that tests run on real Flink: their main classes, sources and options."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Job:
    """A Java job: its main class, its source folders and the Flink options that it needs.

    Attributes:
        main: class with `build(StreamExecutionEnvironment)` and constants that say when it has run far enough
            (`RunningJob.runRound`).
        sources: source folders, relative to the root of the tree; `{major}` stands for `1` or `2`.
        max_parallelism: number of key groups.
        settings: Flink options.
        tables: it needs the runtime or the planner of SQL.
        counted_uids: the planner makes its uids with a number that goes on from job to job in a JVM
            (`ExecNodeContext.newNodeId`), so each run takes a new JVM.
    """

    main: str
    sources: tuple[str, ...]
    max_parallelism: int = 128
    settings: Mapping[str, str] = field(default_factory=dict)
    tables: bool = False
    counted_uids: bool = False


def orders_job(classes: str = "v1") -> Job:
    """The job of the orders example with its first (`v1`) or its evolved (`v2`) class `Order`."""
    return Job("com.acme.orders.OrdersJob", (f"examples/orders/java/{classes}", "examples/orders/java/job"))


def shop_job(classes: str = "v1") -> Job:
    """The job of the example about Flink 1.x to 2.x; its class `Visit` goes by Kryo (`v1`) or is a POJO (`v2`)."""
    own = ("examples/upgrade/java/job", f"examples/upgrade/java/{classes}")
    # The source of the orders example, with the other classes of its folders.
    orders = ("examples/orders/java/v1", "examples/orders/java/job")
    return Job("com.acme.shop.ShopJob", (*own, *orders), settings={"pipeline.generic-types": "true"})


def types_job(max_parallelism: int = 128) -> Job:
    """The job with every type and every kind of state."""
    return _job_of_types("types.TypesJob", max_parallelism)


def sessions_job(keys: str) -> Job:
    """Session windows of the same numbers by many keys (`Fine`) or by few (`Coarse`)."""
    return _job_of_types(f"types.SessionsJob${keys}", 128)


def rounds_job(max_parallelism: int = 128) -> Job:
    """A smaller job with every kind of state, which changes its state in three rounds with a checkpoint after each."""
    return _job_of_types("types.RoundsJob", max_parallelism)


def few_states_job(max_parallelism: int = 128) -> Job:
    """The rounds of `rounds_job` with one operator of three keyed states and timers."""
    return _job_of_types("types.FewStatesJob", max_parallelism)


def in_flight_job(max_parallelism: int = 128) -> Job:
    """A job between whose operators records wait; with unaligned checkpoints these become part of the state."""
    return _job_of_types("types.InFlightJob", max_parallelism)


def finished_job(max_parallelism: int = 128) -> Job:
    """A job one source of which comes to an end."""
    return _job_of_types("types.FinishedJob", max_parallelism)


def async_job(max_parallelism: int = 128) -> Job:
    """A job with the asynchronous state API of Flink 2."""
    return _job_of_types("types.AsyncJob", max_parallelism)


def steady_job(settings: Mapping[str, str] = MappingProxyType({})) -> Job:
    """A job that changes its state all the time and never ends."""
    return Job("steady.SteadyJob", ("tests/flink/java/steady",), settings=settings)


def unknown_job(max_parallelism: int = 128) -> Job:
    """A job of five operators, one of which has a serializer that only its own class reads."""
    sources = ("tests/flink/java/unknown", "examples/orders/java/v1", "examples/orders/java/job")
    return Job("unknown.UnknownJob", sources, max_parallelism)


def classic_job() -> Job:
    """A job whose states have the serializers that users write: by `writeUTF`, with outer data, a generic array."""
    sources = ("tests/flink/java/classic", "examples/orders/java/v1", "examples/orders/java/job")
    return Job("classic.ClassicJob", sources)


def migrating_job(classes: str, *, map_keys: bool = False, settings: Mapping[str, str] = MappingProxyType({})) -> Job:
    """A job whose serializers, of a user and of a POJO inside of one, migrate from classes `v1` to `v2`."""
    own = (f"tests/flink/java/migrating/{classes}", "tests/flink/java/migrating/job")
    main = "migrating.MapKeysJob" if map_keys else "migrating.MigratingJob"
    return Job(main, (*own, "examples/orders/java/v1", "examples/orders/java/job"), settings=settings)


def functions_job(first: int, end: int) -> Job:
    """A broadcast function, sliding windows and an operator with raw state over the numbers from `first` to `end`."""
    sources = ("tests/flink/java/functions", "examples/orders/java/v1", "examples/orders/java/job")
    settings = {"functions.first": str(first), "functions.end": str(end)}
    return Job("functions.FunctionsJob", sources, settings=settings)


def join_job() -> Job:
    """A job with a function of two inputs."""
    return Job("join.JoinJob", ("tests/flink/java/join", "examples/orders/java/v1", "examples/orders/java/job"))


def reminders_job() -> Job:
    """A job that sets a timer, deletes it, and sets an earlier one for the same key."""
    sources = ("tests/flink/java/reminders", "examples/orders/java/v1", "examples/orders/java/job")
    return Job("reminders.RemindersJob", sources)


def conflict_job(max_parallelism: int = 128) -> Job:
    """A SQL job with `ON CONFLICT` (Flink 2.3), whose sink keeps rows until the watermark passes them."""
    sources = ("tests/flink/java/conflict", "examples/orders/java/v1", "examples/orders/java/job")
    settings = {"table.exec.uid.generation": "ALWAYS", "pipeline.generic-types": "true"}
    return Job("conflict.ConflictJob", sources, max_parallelism, settings, tables=True, counted_uids=True)


def rescaling_job(
    max_parallelism: int = 128,
    *,
    keys: int = 300,
    first: int = 0,
    operators: Iterable[str] = (),
    uids: Mapping[str, str] = MappingProxyType({}),
    wrong_hash: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Job:
    """A job with the same states below keys of many types, and with operator state of every kind.

    Args:
        max_parallelism: number of key groups.
        keys: how many keys each operator has.
        first: number of the first key; jobs with other numbers have no key in common.
        operators: which of the operators of `rescaling.RescalingJob` there are; all by default.
        uids: operators that have another uid.
        wrong_hash: the class of some keys has another `hashCode`.
        settings: Flink options.
    """
    settings = {
        **settings,
        "rescaling.keys": str(keys),
        "rescaling.first": str(first),
        "rescaling.wrong-hash": str(wrong_hash).lower(),
        # A job of many operators with many subtasks has many network buffers.
        "taskmanager.memory.segment-size": "4kb",
    }
    if operators:
        settings["rescaling.operators"] = ";".join(operators)
    if uids:
        settings["rescaling.uids"] = ",".join(f"{old}:{new}" for old, new in uids.items())
    sources = ("tests/flink/java/rescaling", "examples/orders/java/v1", "examples/orders/java/job")
    return Job("rescaling.RescalingJob", sources, max_parallelism, settings, tables=True)


def _job_of_types(main: str, max_parallelism: int) -> Job:
    return Job(
        main,
        (
            "tests/flink/java/types",
            "tests/flink/java/types-flink-{major}",
            "examples/orders/java/v1",
            "examples/orders/java/job",
        ),
        max_parallelism=max_parallelism,
        settings={"pipeline.serialization-config": "[types.Employee: {type: pojo}]"},
    )
