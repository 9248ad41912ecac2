"""Answers of Flink's REST endpoint about one job, as a server of the tests gives them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.clusters.servers import Server

JOB = "a" * 32
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MILLIS = int(NOW.timestamp() * 1000)
SOURCE, COUNTS = "c" * 32, "d" * 32
EXPIRED, SUSPENDED = "Checkpoint expired before completing.", "Checkpoint Coordinator is suspending."


def describe_job(status: str = "RUNNING") -> dict[str, Any]:
    vertices = [
        {"id": SOURCE, "name": "numbers", "parallelism": 2, "maxParallelism": 128, "status": "RUNNING"},
        {"id": COUNTS, "name": "counts", "parallelism": 2, "maxParallelism": 128, "status": "RUNNING"},
    ]
    return {
        "jid": JOB,
        "name": "orders",
        "state": status,
        "start-time": MILLIS - 7_200_000,
        "end-time": -1,
        "maxParallelism": -1,
        "vertices": vertices,
        "plan": {},
    }


def complete(number: int, seconds_ago: float, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "status": "COMPLETED",
        "is_savepoint": False,
        "trigger_timestamp": MILLIS - int(seconds_ago * 1000),
        "end_to_end_duration": 100 * number,
        "state_size": 1000 * number,
        "checkpointed_size": 10,
        "num_subtasks": 4,
        "num_acknowledged_subtasks": 4,
        "external_path": f"file:/checkpoints/chk-{number}",
        "tasks": {
            SOURCE: {"status": "COMPLETED", "num_subtasks": 2, "num_acknowledged_subtasks": 2, "state_size": 8},
            COUNTS: {
                "status": "COMPLETED",
                "num_subtasks": 2,
                "num_acknowledged_subtasks": 2,
                "state_size": 500 * number,
            },
        },
        **more,
    }


def fail(number: int, seconds_ago: float, message: str) -> dict[str, Any]:
    ended = MILLIS - int(seconds_ago * 1000)
    more = {"failure_timestamp": ended, "failure_message": message, "num_acknowledged_subtasks": 3}
    return {**complete(number, seconds_ago + 1), "status": "FAILED", "external_path": None, **more}


def fail_job(seconds_ago: float, stack: str) -> dict[str, Any]:
    return {
        "timestamp": MILLIS - int(seconds_ago * 1000),
        "exceptionName": "java.io.IOException",
        "stacktrace": stack,
        "taskName": "counts (1/2)",
    }


def arrange(
    server: Server,
    *history: dict[str, Any],
    job: str = "RUNNING",
    failures: tuple[dict[str, Any], ...] = (),
    interval: int = 10_000,
) -> None:
    path = f"GET /jobs/{JOB}"
    details = describe_job(job)
    server.on("GET /jobs/overview", {"jobs": [details]})
    server.on(path, details)
    server.on(f"{path}/config", {"execution-config": {"user-config": {"topic": "orders"}}})
    settings = {"mode": "exactly_once", "interval": interval, "timeout": 5000, "tolerable_failed_checkpoints": 3}
    server.on(f"{path}/checkpoints/config", settings)
    server.on(f"{path}/exceptions", {"exceptionHistory": {"entries": list(failures)}})
    failed = sum(each["status"] == "FAILED" for each in history)
    counts = {"completed": len(history) - failed, "failed": failed, "in_progress": 0, "restored": 1}
    restored = {"restored": {"id": 7, "external_path": "file:/savepoints/s-7"}}
    server.on(f"{path}/checkpoints", {"counts": counts, "latest": restored, "history": list(history)})
    for each in history:
        details_of = f"{path}/checkpoints/details/{each['id']}"
        server.on(details_of, each)
        for vertex, ms in ((SOURCE, 10), (COUNTS, 70)):
            subtasks = [describe_subtask(index, ms * (index + 1)) for index in range(2)]
            if each["status"] == "FAILED" and vertex == COUNTS:
                subtasks[1] = {"index": 1, "status": "pending_or_failed"}
            server.on(f"{details_of}/subtasks/{vertex}", {"subtasks": subtasks})
    server.on(f"{path}/metrics", [{"id": "numRestarts", "value": "3"}, {"id": "uptime", "value": "5000"}])
    for vertex in (SOURCE, COUNTS):
        names = [{"id": "Source__numbers.pendingRecords", "sum": 12}] if vertex == SOURCE else []
        full = 990 if vertex == COUNTS else 10
        ratios = [
            {"id": "busyTimeMsPerSecond", "max": full},
            {"id": "backPressuredTimeMsPerSecond", "max": 1000 - full},
        ]
        server.on(f"{path}/vertices/{vertex}/subtasks/metrics", names, ratios, names)
        server.on(f"{path}/vertices/{vertex}/watermarks", [{"id": "0.currentInputWatermark", "value": "5"}])


def describe_subtask(index: int, ms: int) -> dict[str, Any]:
    return {
        "index": index,
        "status": "completed",
        "ack_timestamp": MILLIS,
        "end_to_end_duration": ms,
        "state_size": 9,
        "checkpoint": {"sync": 1, "async": 2},
        "alignment": {"duration": 3},
        "start_delay": 4,
    }
