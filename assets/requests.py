"""`rescale_requests`: starts rescalings that somebody asks for in a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import dagster as dg
import yaml

from assets.jobs import rescale_snapshot
from assets.partitions import make_partition_key, snapshots
from assets.rescaling import KEY, RescaleConfig
from resources import StorageResource
from state_pipelines.errors import NotFoundError, StateError, UsageError

if TYPE_CHECKING:
    from resources.storage import RequestFile
    from state_pipelines.snapshot import Snapshot

LATEST = "latest"
"""Says in place of a name that the newest snapshot is meant."""


@dg.sensor(job=rescale_snapshot, minimum_interval_seconds=30)
def rescale_requests(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult | dg.SkipReason:
    """Requests a run for every new or changed YAML file in the directory of requests; once each.

    A file is a request as `state-pipelines rescale` takes it, with `snapshot` (name of its directory, key of its
    partition, or `latest`) and perhaps `files`. One that is wrong is told in the skipped tick, until it changes.
    """
    known: dict[str, str] = json.loads(context.cursor) if context.cursor else {}
    found = {file.name: file for file in storage.list_requests()}
    runs, keys, reasons = [], [], []
    # What came of a file; a wrong one keeps its reason.
    state = {}
    for name, file in found.items():
        if known.get(name) == file.mark:
            state[name] = file.mark
            continue
        try:
            snapshot, config = _read(storage, file)
            key = make_partition_key(snapshot)
        except StateError as error:
            context.log.warning("Not a request: %s: %s", name, error)
            reasons.append(f"{name}: {error}")
            if not isinstance(error, NotFoundError):
                state[name] = file.mark
            continue
        state[name] = file.mark
        keys.append(key)
        runs.append(
            dg.RunRequest(
                run_key=f"{name}-{file.mark}",
                partition_key=key,
                run_config={"ops": {KEY.to_python_identifier(): {"config": config}}},
                tags={"state-pipelines/request": name},
            )
        )
    return dg.SensorResult(
        run_requests=runs,
        dynamic_partitions_requests=[snapshots.build_add_request(list(dict.fromkeys(keys)))] if keys else [],
        skip_reason=None if runs else "; ".join(reasons) or f"No new requests in {storage.requests}",
        cursor=json.dumps(state),
    )


def _read(storage: StorageResource, file: RequestFile) -> tuple[Snapshot, dict[str, Any]]:
    """The snapshot that a file names, and the configuration of the run."""
    try:
        content = yaml.safe_load(file.read())
    except yaml.YAMLError as error:
        raise UsageError(f"the request is not YAML: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("snapshot"), str):
        raise UsageError("the request names no snapshot", hint=f"Such as snapshot: savepoint-1a2b, or {LATEST}")
    rest = {name: value for name, value in content.items() if name not in ("snapshot", "files")}
    config: dict[str, Any] = {"request": yaml.safe_dump(rest, sort_keys=False, allow_unicode=True)}
    if "files" in content:
        config["files"] = str(content["files"])
    RescaleConfig(**config).parse()
    return _find(storage, content["snapshot"]), config


def _find(storage: StorageResource, name: str) -> Snapshot:
    entries = storage.list_snapshots()
    if name == LATEST:
        dated = [(entry.modified, str(entry.location.directory)) for entry in entries if entry.modified is not None]
        if dated:
            return storage.open(max(dated)[1])
    for entry in entries:
        directory = entry.location.directory
        if name.startswith(directory.name):
            snapshot = storage.open(str(directory))
            if name in (directory.name, make_partition_key(snapshot)):
                return snapshot
    known = ", ".join(entry.location.directory.name for entry in entries) or "none"
    raise NotFoundError(f"there is no snapshot {name} below {storage.snapshots}", hint=f"There are {known}")
