"""Files that describe the new job, against which a snapshot is checked, and a commented one for Dagster to start from.

    max_parallelism: 128                    # set by the program; left out: as in the snapshot
    complete: true                          # states not named are dropped; else they stay as in the snapshot
    serialization-config:                   # pipeline.serialization-config of the job
      - com.acme.Gift: {type: pojo}
      - com.acme.Money: {type: kryo, kryo-type: registered, class: com.acme.MoneySerializer}
    classes:                                # field lists, or paths of such files, jars, directories, class files
      class com.acme.Order: {id: long, tags: List<String>}
    operators:
      orders:                               # uid, or 32-digit id
        key: String
        parallelism: 4
        states:
          order: com.acme.Order             # a type alone: the kind is that of the snapshot, or VALUE
          seen: {type: Instant, ttl: true}
          history: {kind: LIST, element: String}
          quantities: {kind: MAP, key: String, value: Long}
          sums: {kind: AGGREGATING, type: "Tuple2<Long, Int>", namespace: TimeWindow}
          offers: {avro: offer.avsc}        # a generic record, or `class:` of a generated one
      counter:
        states:
          counts: {kind: UNION, element: "Tuple2<String, Long>"}
          prices: {kind: BROADCAST, key: String, value: Double}

Types are in the readable form (`serializers.text`), in Java's (`long`, `Integer`), or names of classes, which are
looked up in `classes` and on the class path and go through Flink's type extraction. JSON is YAML, too.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.javaclasses import ClassPath, open_class_path
from state_pipelines.metadata.checkpoint import compute_operator_id, format_operator_id
from state_pipelines.operations.jobs.job_state import (
    GENERIC_RECORD,
    JobDescription,
    JobOperator,
    JobState,
    Subject,
    configure_kryo,
    extract_types,
    list_assumed,
    payload_of,
    read_schema,
    read_type,
    replace_avro,
    replace_classes,
)
from state_pipelines.serializers import build
from state_pipelines.serializers.java_types import KryoConfig
from state_pipelines.serializers.tree import Avro, MapOf, Serializer, StateKind
from state_pipelines.storage.documents import parse_yaml, read_given_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.operations.jobs.type_extraction import TypeExtraction

_JOB = {"complete", "parallelism", "max_parallelism", "serialization-config", "classes", "operators"}
_OPERATOR = {"key", "parallelism", "max_parallelism", "states"}
_STATE = {"kind", "type", "element", "key", "value", "namespace", "ttl", "avro", "class"}
_VALUES, _LISTS, _MAPS = (
    (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING),
    (StateKind.LIST, StateKind.SPLIT_DISTRIBUTE, StateKind.UNION),
    (StateKind.MAP, StateKind.BROADCAST),
)
_KEYED = (*_VALUES, StateKind.LIST, StateKind.MAP)
_ID = re.compile("[0-9a-fA-F]{32}")
_OFF = ("", "false", "no", "off", "0", "null", "none")
DEFAULT_MAX_PARALLELISM = 128


def load_job(
    path: str | Path, old: JobDescription, release: tuple[int, int], classes: ClassPath | None = None
) -> JobDescription:
    """Load the job that a file describes.

    Args:
        path: the file; paths in it are relative to its directory.
        old: the job of the snapshot, for everything that the file does not describe.
        release: release of Flink that runs the new job, (major, minor).
        classes: class path in which classes are looked up that the file does not declare.

    Raises:
        UsageError: the file is not such a description; names the operator and the state.
    """
    try:
        # Keep all scalars as text: `null` may be the name of a type, and 1.20 a release.
        content = parse_yaml(read_given_text(path, "the description"), as_texts=True)
    except yaml.YAMLError as error:
        raise UsageError(f"the description is not YAML: {error}", where=Where(file=str(path))) from None
    try:
        return _Description(_check_names(content, _JOB, "the description"), Path(path), old, release, classes).job()
    except StateError as error:
        if error.where.file is None:
            error.where = replace(error.where, file=str(path))
        raise


class _Description:
    def __init__(
        self,
        content: Mapping[str, Any],
        path: Path,
        old: JobDescription,
        release: tuple[int, int],
        classes: ClassPath | None,
    ) -> None:
        self.content = content
        self.path = path
        self.old = old
        self.is_complete = _is_on(content.get("complete", "false"))
        declared = self._open_classes()
        outer = classes or ClassPath()
        together = ClassPath((*declared.entries, *outer.entries), (*declared.names, *outer.names))
        registered, factories, kryo = _read_serialization_config(content.get("serialization-config"))
        self.extraction: TypeExtraction = extract_types(
            old, together, release, registered=registered, factories=factories, kryo=kryo
        )

    def _open_classes(self) -> ClassPath:
        classes = self.content.get("classes") or {}
        if isinstance(classes, dict):
            return open_class_path([], load_classes(yaml.safe_dump(classes, sort_keys=False)))
        paths = [classes] if isinstance(classes, str) else classes
        if not isinstance(paths, list) or not all(isinstance(each, str) for each in paths):
            raise UsageError("`classes` is neither a field list nor a list of paths")
        return open_class_path(self.path.parent / each for each in paths)

    def job(self) -> JobDescription:
        described = _check_names(self.content.get("operators") or {}, None, "`operators`")
        carried = replace_classes(self.old, self.extraction)
        known = {each.id: each for each in carried.operators}
        named: dict[str, JobOperator] = {}
        for name, body in described.items():
            labelled = [each.id for each in carried.operators if name in (each.label, each.id)]
            identity = labelled[0] if labelled else _find_id(str(name))
            named[identity] = self._operator(str(name), identity, body, known.get(identity))
        kept = () if self.is_complete else carried.operators
        unnamed = (self._replace_states(each, {}, each) for each in kept if each.id not in named)
        notes = list(list_assumed(self.extraction))
        if not self.is_complete:
            notes.append("States that the description does not name are taken from the snapshot")
        job = JobDescription(str(self.path), (*named.values(), *unnamed), notes=tuple(notes))
        return configure_kryo(job, self.extraction)

    def _operator(self, name: str, identity: str, body: object, old: JobOperator | None) -> JobOperator:
        entries = _check_names(body or {}, _OPERATOR, f"operator {name}")
        key = old.key if old is not None else None
        if "key" in entries:
            key = self._type(entries["key"], Where(operator=name, path="key"))
        operator = JobOperator(
            id=identity,
            label=old.label if old is not None else name,
            parallelism=old.parallelism if old is not None else 1,
            max_parallelism=old.max_parallelism if old is not None else DEFAULT_MAX_PARALLELISM,
            key=key,
            states=old.states if old is not None else (),
            unread=old.unread if old is not None else "",
        )
        if "states" in entries:
            operator = replace(operator, states=tuple(self._states(name, entries["states"], operator)), unread="")
        states = tuple(_follow_key(each, key) for each in operator.states)
        if key is None and any(each.kind in _KEYED for each in states):
            raise UsageError("the type of the keys is missing", where=Where(operator=name), hint="Write `key: TYPE`")
        return self._replace_states(replace(operator, states=states), entries, old)

    def _replace_states(
        self, operator: JobOperator, entries: Mapping[str, Any], old: JobOperator | None
    ) -> JobOperator:
        """Return the operator with the parallelism and max parallelism of its entry, or else of the whole job."""
        parallelism = entries.get("parallelism", self.content.get("parallelism"))
        max_parallelism = entries.get("max_parallelism", self.content.get("max_parallelism"))
        if parallelism is not None:
            operator = replace(operator, parallelism=_read_number(parallelism, operator.label))
        if max_parallelism is not None:
            number = _read_number(max_parallelism, operator.label)
            operator = replace(operator, max_parallelism=number, sets_max_parallelism=True)
        return operator

    def _states(self, name: str, body: object, operator: JobOperator) -> list[JobState]:
        described = _check_names(body or {}, None, f"the states of operator {name}")
        before = {each.name: each for each in operator.states}
        states = []
        for state_name, entries in described.items():
            where = Where(operator=name, state=str(state_name))
            entries = {"type": entries} if isinstance(entries, str) else entries
            entries = _check_names(entries, _STATE, f"state {state_name}")
            states.append(self._state(str(state_name), entries, before.get(str(state_name)), where))
        rest = (each for each in operator.states if each.name not in described)
        # Keep timers even if a complete description does not list them: Flink registers them itself.
        return [*states, *(each for each in rest if not self.is_complete or each.kind == StateKind.TIMER)]

    def _state(self, name: str, entries: Mapping[str, Any], old: JobState | None, where: Where) -> JobState:
        kind = _find_kind(entries, old, where)
        if "avro" in entries and "type" not in entries and old is not None and _is_inner_avro(old):
            return self._replace_avro(old, entries["avro"], where)
        payload = self._payload(entries, kind, old, where)
        if kind in _KEYED and _is_on(entries.get("ttl", "false")):
            payload = build.ttl(payload)
        if kind in (StateKind.SPLIT_DISTRIBUTE, StateKind.UNION):
            return JobState(name, kind, {Subject.ELEMENT: payload})
        if kind == StateKind.BROADCAST:
            return JobState(
                name, kind, {Subject.MAP_KEY: self._map_key(entries, old, where), Subject.MAP_VALUE: payload}
            )
        if kind == StateKind.LIST:
            payload = build.list_of(payload)
        elif kind == StateKind.MAP:
            payload = build.map_of(self._map_key(entries, old, where), payload)
        namespace: Serializer = build.VOID_NAMESPACE
        if "namespace" in entries:
            namespace = self._type(entries["namespace"], where)
        elif old is not None:
            namespace = old.serializers.get(Subject.NAMESPACE, namespace)
        return JobState(name, kind, {Subject.NAMESPACE: namespace, Subject.VALUE: payload})

    def _payload(self, entries: Mapping[str, Any], kind: StateKind, old: JobState | None, where: Where) -> Serializer:
        if "avro" in entries:
            before = payload_of(old) if old is not None and old.kind != StateKind.TIMER else None
            runtime_class = before.runtime_class if isinstance(before, Avro) else GENERIC_RECORD
            return build.avro(entries.get("class", runtime_class), self._schema(entries["avro"]))
        words = ("element", "type") if kind in _LISTS else ("value", "type") if kind in _MAPS else ("type", "value")
        for word in words:
            if word in entries:
                return self._type(entries[word], where)
        raise UsageError(f"`{words[0]}` is missing", where=where)

    def _replace_avro(self, old: JobState, file: str, where: Where) -> JobState:
        """Return the old state with another Avro schema for the records inside its value."""
        operator = JobOperator("", "-", 1, 1, None, (old,))
        changed = replace_avro(JobDescription("", (operator,)), f"-/{old.name}", self._schema(file))
        return changed.operators[0].states[0]

    def _schema(self, file: str) -> str:
        return read_schema(self.path.parent / file)

    def _map_key(self, entries: Mapping[str, Any], old: JobState | None, where: Where) -> Serializer:
        if "key" in entries:
            return self._type(entries["key"], where)
        if old is not None and Subject.MAP_KEY in old.serializers:
            return old.serializers[Subject.MAP_KEY]
        before = old.serializers.get(Subject.VALUE) if old is not None else None
        if isinstance(before, MapOf):
            return before.key
        raise UsageError("`key` is missing", where=where)

    def _type(self, text: object, where: Where) -> Serializer:
        if not isinstance(text, str):
            raise UsageError("a type is text", where=where, hint="Put it in quotes")
        try:
            return read_type(text, self.extraction)
        except UsageError as error:
            raise UsageError(f"{text!r} is not a type: {error.what}", where=where, hint=error.hint) from None


def _find_id(name: str) -> str:
    """Return the id of an operator that the snapshot lacks: `name` if it is an id, else the hash of `name` as uid."""
    return name.lower() if _ID.fullmatch(name) else format_operator_id(compute_operator_id(name))


def _is_inner_avro(old: JobState) -> bool:
    return old.kind != StateKind.TIMER and not isinstance(payload_of(old), Avro)


def _follow_key(state: JobState, key: Serializer | None) -> JobState:
    """Return timers with the serializer of the new keys, which they contain; return other states as they are."""
    timer = state.serializers.get(Subject.TIMER)
    if key is None or timer is None or len(timer.nested) != 2:
        return state
    return replace(state, serializers={Subject.TIMER: build.timer(key, timer.nested[1])})


def _find_kind(entries: Mapping[str, Any], old: JobState | None, where: Where) -> StateKind:
    known = (*_VALUES, *_LISTS, *_MAPS)
    if "kind" in entries:
        kind = str(entries["kind"]).upper()
        if kind not in known:
            raise UsageError(
                f"{entries['kind']!r} is not a kind of state", where=where, hint=f"Kinds are {', '.join(known)}"
            )
        return StateKind(kind)
    shape = _LISTS if "element" in entries else _MAPS if "key" in entries else _VALUES
    if old is None:
        return {_LISTS: StateKind.LIST, _MAPS: StateKind.MAP, _VALUES: StateKind.VALUE}[shape]
    # An entry with only a type may describe the elements of an old LIST state or the values of an old MAP state.
    fitting = old.kind in shape or (shape is _VALUES and old.kind in (*_LISTS, *_MAPS))
    return old.kind if fitting else shape[0]


def _read_serialization_config(
    config: object,
) -> tuple[tuple[str, ...] | None, frozenset[str], KryoConfig | None]:
    """Read `pipeline.serialization-config`: POJO types in their order, classes with a factory, and entries of Kryo.

    POJO types and entries of Kryo are None if there is no configuration. Source: `SerializerConfigImpl`.
    """
    if config is None:
        return None, frozenset(), None
    entries = parse_yaml(config, as_texts=True) if isinstance(config, str) else config
    if not isinstance(entries, list):
        raise UsageError("`serialization-config` is not a list", hint="Such as [com.acme.Gift: {type: pojo}]")
    named: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        for name, body in _check_names(entry, None, "`serialization-config`").items():
            if str(name) in named:
                raise UsageError(f"`serialization-config` has {name} twice", hint="Flink does not start such a job")
            named[str(name)] = body if isinstance(body, dict) else {}
    kinds = {name: _read_config_kind(name, body) for name, body in named.items()}

    def having(kind: str) -> tuple[str, ...]:
        return tuple(name for name, each in kinds.items() if each == kind)

    def with_classes(kind: str) -> tuple[tuple[str, str], ...]:
        return tuple((name, str(named[name]["class"])) for name in having(kind))

    kryo = KryoConfig(having("kryo"), with_classes("registered"), with_classes("default"))
    return having("pojo"), frozenset(having("typeinfo")), kryo


def _read_config_kind(name: str, body: Mapping[str, Any]) -> str:
    """Return the type of an entry; if that is `kryo` with a serializer, return its `kryo-type`."""
    kind = body.get("type")
    if kind not in ("pojo", "kryo", "typeinfo"):
        raise UsageError(f"`serialization-config` of {name} has no type", hint="Types: pojo, kryo, typeinfo")
    kryo_type = body.get("kryo-type") if kind == "kryo" else None
    if kryo_type is None:
        return str(kind)
    if kryo_type not in ("registered", "default"):
        raise UsageError(
            f"`serialization-config` of {name} has the kryo-type {kryo_type}, which Flink ignores",
            hint="Kinds of Kryo serializers: registered, default",
        )
    if not body.get("class"):
        raise UsageError(
            f"`serialization-config` of {name} names no serializer",
            hint=f"{{type: kryo, kryo-type: {kryo_type}, class: com.acme.MySerializer}}",
        )
    return str(kryo_type)


def _check_names(content: object, known: set[str] | None, what: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise UsageError(f"{what} is not a mapping")
    unknown = sorted(str(name) for name in content if known is not None and name not in known)
    if unknown:
        raise UsageError(
            f"unknown entries {', '.join(unknown)} in {what}", hint=f"Known are {', '.join(sorted(known or ()))}"
        )
    return content


def _read_number(text: object, operator: str) -> int:
    try:
        number = int(str(text))
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError(f"{text!r} is not a parallelism", where=Where(operator=operator))
    return number


def _is_on(text: object) -> bool:
    return str(text).strip().lower() not in _OFF


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
  # jars: [functions.jar]
  # Snapshots that get a partition in Dagster. With `checkpoint` in kinds, so does the newest checkpoint of each hour.
  watch: {kinds: [savepoint]}
  # watch: {since: newest, kinds: [savepoint, checkpoint], checkpoints: 1h, migrate: [savepoint], retries: 2}
  # Time to live by OPERATOR/STATE or STATE, which snapshots do not hold; * for all others.
  # ttl: {"*": 30d}

  # Directory of revisions, and the one that snapshots are migrated to: head, base or a name.
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
  # Savepoints of the running job that are taken by a schedule (docs/running-jobs.md).
  # savepoints: {canonical: monthly, native: {every: daily, keep: 7}}
  # A job of SQL has `new_query: new.sql` instead of migrations: it takes over from the query in `plans` (docs/sql.md).

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
  # Snapshots that retention keeps. Without it, only orphans can be deleted.
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
  # intervals: {new_snapshots: 120, automation: 300}
  # webhook: https://chat.example.com/hook
  # owners: [team:streaming]
  # tags: {cluster: prod}
"""


def format_job(name: str, roots: Sequence[str] = (), results: str | None = None) -> str:
    """Return the text of a YAML file that describes a job; it has all optional fields as comments.

    Args:
        name: name of the job.
        roots: directories of checkpoints and savepoints; if there are none, the text has an example.
        results: directory of new savepoints; by default the text has an example.
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
