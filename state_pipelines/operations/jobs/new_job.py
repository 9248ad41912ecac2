"""The new job of a check: from a snapshot, a file, classes, types and schemas; migrated; or on a newer Flink.

Source of what Flink 2 no longer has: release notes of Flink 2.0 (DataSet and Scala API, `SourceFunction` and
`SinkFunction` connectors are removed, Kryo 5, serializers for collection fields of POJOs); flink-connector-kafka 4.0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo.classes import FieldLists
from state_pipelines.errors import UsageError
from state_pipelines.javaclasses import ClassFieldLists, ClassPath, list_fields, load_field_lists, open_class_path
from state_pipelines.operations.check.check_report import StateCheck, make_check
from state_pipelines.operations.jobs.flink_config import FLINK_2
from state_pipelines.operations.jobs.job_files import load_job
from state_pipelines.operations.jobs.job_state import (
    JobDescription,
    JobOperator,
    JobState,
    StateGroup,
    Subject,
    declare_type,
    describe_job,
    extract_types,
    find_state_classes,
    list_assumed,
    list_serializers,
    read_schema,
    replace_avro,
    replace_classes,
)
from state_pipelines.operations.migration.migration_planner import plan_operator
from state_pipelines.operations.migration.shapes import StateShape, find_shapes, number_columns
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.tree import Kryo, Serializer, StateKind, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.operations.jobs.job_state import StateClasses
    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.snapshot import Snapshot


def migrate_job(job: JobDescription, snapshot: Snapshot, chain: Chain) -> JobDescription:
    """Return the job with the states that migrations make from those of a snapshot.

    Args:
        job: description of the snapshot by `describe_job`.
        snapshot: the snapshot.
        chain: migrations with their directions, in order.

    Raises:
        MigrationError: a migration does not fit the state.
        NotFoundError: the snapshot has no such operator.
    """
    plans: dict[str, OperatorPlan] = {}
    snapshot = number_columns(snapshot)
    for migration, direction in chain:
        for change in migration.changes:
            operator = snapshot.operator(change.operator)
            change.steps(direction)
            if operator.id not in plans:
                plans[operator.id] = plan_operator(operator, find_shapes(operator), chain)
    operators = (_migrate_operator(each, plans[each.id]) if each.id in plans else each for each in job.operators)
    names = ", ".join(migration.revision for migration, _ in chain)
    return replace(job, name=f"the job of migration {names}", operators=tuple(operators), keeps_classes=True)


def _migrate_operator(operator: JobOperator, plan: OperatorPlan) -> JobOperator:
    states = [_describe(name, flow.shape) for name, flow in plan.states.items()]
    # Operator state with the name of a keyed state is not in the plan: migrations do not change it.
    others = (
        state for state in operator.states if state.group is not StateGroup.KEYED and plan.shapes[state.name].is_keyed
    )
    return replace(operator, key=plan.key, states=(*states, *others))


def _describe(name: str, shape: StateShape) -> JobState:
    return JobState(name, shape.kind, list_serializers(shape.kind, shape.info))


_REMOVED_CLASSES = {
    "org.apache.flink.api.scala.": (
        "the Scala API",
        "Use Java types, or a Scala API of the community, in the new job, and `convert` the state in a migration",
    ),
    "org.apache.flink.graph.": (
        "Gelly",
        "Use types of your own in the new job, and `convert` the state in a migration",
    ),
}
"""Packages of serializers that Flink 2 lacks, each with the name of its API and the remedy."""
_KAFKA_SOURCE = (
    "FlinkKafkaConsumer",
    "Use KafkaSource under another uid, started at the offsets that `read` shows or at those of the consumer group "
    "(OffsetsInitializer.committedOffsets), and restore with --allowNonRestoredState",
)
_KAFKA_SINK = (
    "FlinkKafkaProducer",
    "Take the savepoint with --drain or after the open transactions are committed, use KafkaSink under another uid, "
    "and restore with --allowNonRestoredState",
)
_REMOVED_STATES = {
    "topic-partition-offset-states": _KAFKA_SOURCE,
    "next-transactional-id-hint": _KAFKA_SINK,
    "next-transactional-id-hint-v2": _KAFKA_SINK,
    "Kinesis-Stream-Shard-State": (
        "FlinkKinesisConsumer",
        "Use KinesisStreamsSource under another uid, started where `read` shows, and restore with "
        "--allowNonRestoredState",
    ),
}
"""Operator states of connectors that do not exist for Flink 2, each with the class of the connector and the remedy."""
_KAFKA_PACKAGE = "org.apache.flink.streaming.connectors.kafka."


def describe_upgraded_job(old: JobDescription, release: tuple[int, int]) -> JobDescription:
    """Describe the job with the same classes on another release of Flink.

    With class files or field lists of the old job (`old.classes`), the type extraction of the release determines the
    serializers of POJO fields. Without them, all serializers stay the same.
    """
    classes = _choose_classes(old)
    extraction = extract_types(old, classes, release)
    job = replace_classes(old, extraction) if classes.entries else old
    notes = list_assumed(extraction) if classes.entries else _explain_missing_classes(old, release)
    name = f"the same classes on Flink {release[0]}.{release[1]}"
    return replace(job, name=name, metadata_version=None, kryo_version=None, keeps_classes=True, notes=tuple(notes))


def _choose_classes(old: JobDescription) -> ClassPath:
    """Choose the classes of the old job for a type extraction: from class files, else from field lists.

    Classes that Kryo writes are left out of field lists, so that they keep their serializers.
    """
    if isinstance(old.classes, ClassFieldLists):
        return old.classes.class_path
    if old.classes is None:
        return ClassPath()
    kryo = {node.type_class for node in _list_nodes(old) if isinstance(node, Kryo)}
    declared = {name: each for name, each in old.classes.classes.items() if name not in kryo}
    return open_class_path([], FieldLists(declared)) if declared else ClassPath()


def _explain_missing_classes(old: JobDescription, release: tuple[int, int]) -> Iterator[str]:
    if old.kryo_version == 2 and release >= FLINK_2 and any(isinstance(node, Kryo) for node in _list_nodes(old)):
        yield (
            "Without the classes of the job (--classes JAR) the element types of collections are not known, so what "
            "Flink 2 makes of collection fields cannot be drafted"
        )


def judge_removed(operator: JobOperator, state: JobState) -> StateCheck | None:
    """Refuse a state whose classes Flink 2 or its connectors no longer have; return None for all other states."""
    found = _find_removed(state)
    if found is None:
        return None
    what, remedy = found
    return make_check(
        operator,
        state,
        Subject.STATE,
        Outcome.INCOMPATIBLE,
        reason=f"the state is that of {what}, which Flink 2 no longer has",
        remedy=remedy,
    )


def _find_removed(state: JobState) -> tuple[str, str] | None:
    if state.kind in (StateKind.SPLIT_DISTRIBUTE, StateKind.UNION) and state.name in _REMOVED_STATES:
        return _REMOVED_STATES[state.name]
    for node in (node for each in state.serializers.values() for node in walk(each)):
        if node.snapshot_class.startswith(_KAFKA_PACKAGE):
            return _KAFKA_SINK
        for package, found in _REMOVED_CLASSES.items():
            if node.snapshot_class.startswith(package):
                return found
    return None


def list_unnamed_operators(job: JobDescription) -> Iterator[str]:
    """Yield a note on operators with state whose uid is not known: if the job sets none, it may lose their state."""
    unnamed = [each.id for each in job.operators if each.has_state and each.label == each.id]
    if unnamed:
        yield (
            f"No uid is known of {', '.join(unnamed)}: name them with --uid to see whether the job sets one. Flink "
            "derives the id of an operator without uid from the topology of the job; another topology or another Flink "
            "gives another id, under which the state is not found"
        )


def _list_nodes(job: JobDescription) -> Iterator[Serializer]:
    for operator in job.operators:
        yield from operator.list_serializers()


_DESCRIPTIONS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class NewCode:
    """Options that describe the code of a new job.

    Attributes:
        classes: paths of jars, directories, class files and field lists.
        types: types of states, as `OPERATOR/STATE=TYPE`.
        schemas: files with Avro schemas of states, as `OPERATOR/STATE=FILE`.
    """

    classes: tuple[str, ...]
    types: tuple[str, ...]
    schemas: tuple[str, ...]

    def __bool__(self) -> bool:
        """Return whether any of the options is given."""
        return any((self.classes, self.types, self.schemas))

    def describe(self, old: JobDescription, release: tuple[int, int], file: str | None) -> JobDescription:
        """Describe the new job: as in the file, or without one, the old job with the new classes, types and schemas."""
        classes = open_class_path(self.classes)
        extraction = extract_types(old, classes, release)
        if file is None:
            job = replace(replace_classes(old, extraction), name=", ".join((*self.classes, *self.types, *self.schemas)))
            job = replace(job, metadata_version=None, kryo_version=None)
        else:
            job = load_job(file, old, release, classes)
        for text in self.types:
            name, kind = _split(text, "--type")
            job = declare_type(job, name, kind, extraction)
        for text in self.schemas:
            name, path = _split(text, "--avro")
            job = replace_avro(job, name, read_schema(path))
        state_classes: tuple[StateClasses, ...] = ()
        if file is None and self.classes:
            given = [text.partition("=")[0] for text in (*self.types, *self.schemas)]
            state_classes = find_state_classes(job, classes, given=given)
            # `state_classes` has the assumptions for each state, so leave them out of the notes.
            extraction = replace(extraction, assumed=set())
        notes = () if file is not None and not self.types else tuple(list_assumed(extraction))
        notes = tuple(dict.fromkeys((*job.notes, *notes)))
        return replace(job, classes=list_fields(classes), notes=notes, state_classes=state_classes)


def is_description(path: str) -> bool:
    """Return whether a path has the extension of a job description; otherwise it is the path of a snapshot."""
    return path.lower().endswith(_DESCRIPTIONS)


def describe_new_job(
    old: JobDescription,
    code: NewCode,
    release: tuple[int, int],
    *,
    new: str | None,
    open_other: Callable[[str], Snapshot],
) -> JobDescription:
    """Describe the new job: by a snapshot or a description of it, or as the old job with new code or on a new Flink.

    Args:
        old: the old job.
        code: the new code.
        release: release of Flink that runs the new job, (major, minor).
        new: path of a snapshot or of a description (.yaml, .json) of the new job; None for the old job.
        open_other: function that opens a snapshot.

    Raises:
        UsageError: both a snapshot and types or schemas are given.
    """
    if new is None and not code:
        return describe_upgraded_job(old, release)
    if new is not None and not is_description(new):
        if code.types or code.schemas:
            raise UsageError("the types of the new job are those of its snapshot", hint="Leave out --type and --avro")
        job = describe_job(open_other(new))
        return replace(job, classes=load_field_lists(code.classes) if code.classes else None)
    return code.describe(old, release, new)


def _split(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise UsageError(f"{option} {text!r} is not of the form OPERATOR/STATE=…")
    return name, value
