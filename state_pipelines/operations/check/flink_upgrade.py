"""Description of the same job on a newer Flink, and state whose classes Flink 2 no longer has.

Source: release notes of Flink 2.0 (DataSet and Scala API, `SourceFunction` and `SinkFunction` connectors are removed,
Kryo 5, serializers for collection fields of POJOs); flink-connector-kafka 4.0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo.classes import FieldLists
from state_pipelines.javaclasses import ClassPath, open_class_path
from state_pipelines.javaclasses.classpath import ClassFieldLists
from state_pipelines.operations.check.check_report import StateCheck
from state_pipelines.operations.jobs.flink_config import FLINK_2
from state_pipelines.operations.jobs.job_state import Job, JobOperator, JobState, Subject
from state_pipelines.operations.jobs.retyped_job import extract_types, list_assumed, replace_classes
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.tree import Kryo, Serializer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
"""Packages of serializers that Flink 2 lacks, with their product and the remedy."""
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
"""Operator states of connectors that no release for Flink 2 has: the class, and what to do."""
_KAFKA_PACKAGE = "org.apache.flink.streaming.connectors.kafka."


def describe_upgraded_job(old: Job, release: tuple[int, int]) -> Job:
    """The job with the same classes on another release of Flink.

    Without class files or field lists of the snapshot (`old.classes`) serializers stay as they are. With them the type
    extraction of the release determines the types of POJO fields.
    """
    classes = _choose_classes(old)
    extraction = extract_types(old, classes, release)
    job = replace_classes(old, extraction) if classes.entries else old
    notes = list_assumed(extraction) if classes.entries else _explain_missing_classes(old, release)
    name = f"the same classes on Flink {release[0]}.{release[1]}"
    return replace(job, name=name, metadata_version=None, kryo_version=None, keeps_classes=True, notes=tuple(notes))


def _choose_classes(old: Job) -> ClassPath:
    """Choose the classes of the snapshot; without classes that Kryo writes, where only field lists describe them."""
    if isinstance(old.classes, ClassFieldLists):
        return old.classes.class_path
    if old.classes is None:
        return ClassPath()
    kryo = {node.type_class for node in _list_nodes(old) if isinstance(node, Kryo)}
    declared = {name: each for name, each in old.classes.classes.items() if name not in kryo}
    return open_class_path([], FieldLists(declared)) if declared else ClassPath()


def _explain_missing_classes(old: Job, release: tuple[int, int]) -> Iterator[str]:
    if old.kryo_version == 2 and release >= FLINK_2 and any(isinstance(node, Kryo) for node in _list_nodes(old)):
        yield (
            "Without the classes of the job (--classes JAR) the element types of collections are not known, so what "
            "Flink 2 makes of collection fields cannot be drafted"
        )


def judge_removed(operator: JobOperator, state: JobState) -> StateCheck | None:
    """Judge a state whose classes Flink 2 or its connectors no longer have; None for all other states."""
    found = _find_removed(state)
    if found is None:
        return None
    what, remedy = found
    return StateCheck(
        operator=operator.label,
        state=state.name,
        kind=str(state.kind),
        subject=Subject.STATE,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the state is that of {what}, which Flink 2 no longer has",
        remedy=remedy,
    )


def _find_removed(state: JobState) -> tuple[str, str] | None:
    if state.kind in (StateKind.SPLIT_DISTRIBUTE, StateKind.UNION) and state.name in _REMOVED_STATES:
        return _REMOVED_STATES[state.name]
    for node in _walk(state.serializers.values()):
        if node.snapshot_class.startswith(_KAFKA_PACKAGE):
            return _KAFKA_SINK
        for package, found in _REMOVED_CLASSES.items():
            if node.snapshot_class.startswith(package):
                return found
    return None


def list_unnamed_operators(job: Job) -> Iterator[str]:
    """A note about operators with state whose uid is not known, since the job may not set one."""
    unnamed = [each.id for each in job.operators if each.has_state and each.label == each.id]
    if unnamed:
        yield (
            f"No uid is known of {', '.join(unnamed)}: name them with --uid to see whether the job sets one. Flink "
            "derives the id of an operator without uid from the topology of the job; another topology or another Flink "
            "gives another id, under which the state is not found"
        )


def _list_nodes(job: Job) -> Iterator[Serializer]:
    for operator in job.operators:
        yield from operator.list_serializers()


def _walk(nodes: Iterable[Serializer]) -> Iterator[Serializer]:
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        pending += node.nested
