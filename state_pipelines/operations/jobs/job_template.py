"""The commented description of a Flink job for Dagster, to start from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPONENT = "state_pipelines.dagster.FlinkJobComponent"

_TEMPLATE = """\
# One Flink job. Paths without a scheme start at the directory of this file; {{ env('NAME', 'default') }} in a text is
# an environment variable. `dg check yaml` validates the file; docs/dagster.md explains every field.
type: @COMPONENT@
attributes:
  # Prefix of asset keys, jobs and sensors: letters, digits and _.
  name: @NAME@
  # description: Shown at the job in the asset graph.

  # Directories of checkpoints and savepoints, at most 4 levels below.
  roots:
@ROOTS@
  # New savepoints are written here.
  results: @RESULTS@
  # Tables of the states (Parquet); without it there are none.
  # tables: s3://bucket/tables
  # Options of fsspec by root. ${NAME} is replaced where the storage is opened, so that no secret is kept.
  # storage_options:
  #   s3://bucket: {key: "${S3_KEY}", secret: "${S3_SECRET}"}
  # Flink's own configuration: directories and num-retained are taken from it.
  # flink_config: config.yaml
  # Directories that were moved after the snapshots were taken.
  # path_mapping: [hdfs://old/flink=s3://bucket/flink]
  # Directories that snapshots may name files in, besides roots, results and their own.
  # allow_roots: [s3://bucket/changelog]

  # Facts that the snapshots do not hold. Uids: for snapshots before Flink 2.0.
  # uids: [orders, revenue]
  # Jars, class files and field lists of the job that took the snapshots (Kryo, subclasses of POJOs).
  # classes: [job-1.jar]
  # key_serializers: [orders=String]
  # connectors: [order-source=kafka]
  # python_types: ['py-op.typed=ROW<n BIGINT, s STRING>']
  # serializers: ['com.acme.Money$Snap=Struct(currency: utf, cents: i64)']
  # protos: [messages.desc]
  # thrifts: [messages.thrift]
  # plans: [plan.json]
  # Snapshots that get a partition. With `checkpoint` in kinds, the newest checkpoint of each hour gets one too.
  watch: {kinds: [savepoint]}
  # watch: {since: newest, kinds: [savepoint, checkpoint], checkpoints: 1h, migrate: [savepoint], retries: 2}
  # Time to live by OPERATOR/STATE or STATE, which snapshots do not hold; * for all others.
  # ttl: {"*": 30d}

  # Revisions, and the one that snapshots are taken to: head, base or a name.
  # migrations: migrations
  # migrate_to: head
  # Release of Flink that restores the results, in quotes.
  target_release: "2.2"
  # The new job: a description (.yaml, .json) or a snapshot of it, and its classes.
  # new_job: job.yaml
  # job_classes: [job-2.jar]

  # The running job, and the program that is to take its place (docs/upgrading.md).
  # cluster: {rest: "http://jobmanager:8081"}
  # job: orders
  # upgrade:
  #   savepoints: s3://bucket/savepoints
  #   old: {jar: job-1.jar, parallelism: 4}
  #   new: {jar: job-2.jar, parallelism: 4}
  #   automatic: [compatible, migrated]

  # Suites of Great Expectations for the states, in YAML files; where their data docs go (docs/expectations.md).
  # expectations: expectations
  # data_docs: /var/lib/state-pipelines/docs

  # A stream that runs here, on Spark, with its state in Flink's format; a run starts every interval.
  # stream:
  #   definition: stream.py:sum_orders
  #   directory: s3://bucket/streams/orders
  #   input: s3://lake/orders/*.parquet
  #   options: {execution.checkpointing.interval: 10 min}
  # New states of a first savepoint: a YAML file as for `state-pipelines bootstrap`, or FILE.py:FUNCTION.
  # bootstrap: bootstrap.yaml

  # Files that ask for operations, one YAML file each.
  # requests: requests
  # Which snapshots stay. Without it nothing but orphans can go.
  # retention:
  #   savepoints: {last: 3, daily: 7, monthly: 12}
  #   checkpoints: {last: 1}
  # Plans are made every night, and applied by a run with their fingerprint; or by themselves, when a second plan after
  # the grace period agrees. Roots are those of all jobs that share files with this one.
  # retention_runs: {apply: scheduled, grace: 6h, max_paths: 100000, max_bytes: 1TiB, quarantine: 7d}
  # Checks warn beyond these.
  # thresholds: {max_imbalance: 2.0, max_hours_without_savepoint: 24}
  # Resources of this job, or keys of those that the code location defines; by default its `spark` and `expectations`.
  # resources: {spark: {memory: 4g}, expectations: {sample_size: 20}}
  # When assets are materialised automatically, by name: a cron expression, new_snapshot, eager, on_missing or never.
  # automation: {key_group_balance: never, snapshot_profile: "0 3 * * *"}
  # Keys, group and descriptions of the assets.
  # translation: {key_prefix: [flink], group_name: platform, descriptions: {restore_audit: Restorable or not.}}
  # Whether the sensors run at once, and where failed runs are posted.
  # sensors: running
  # intervals: {new_snapshots: 60, automation: 300}
  # webhook: https://chat.example.com/hook
  # owners: [team:streaming]
  # tags: {cluster: prod}
"""


def format_job(name: str, roots: Sequence[str] = (), results: str | None = None) -> str:
    """The text of a YAML file that describes a job, with every other field as a comment.

    Args:
        name: of the job.
        roots: directories of checkpoints and savepoints; an example when there are none.
        results: directory of new savepoints; an example by default.
    """
    listed = "\n".join(f"    - {json.dumps(root)}" for root in roots or (f"s3://bucket/{name}/checkpoints",))
    values = {
        "COMPONENT": COMPONENT,
        "NAME": name,
        "ROOTS": listed,
        "RESULTS": json.dumps(results or f"s3://bucket/{name}/results"),
    }
    text = _TEMPLATE
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
