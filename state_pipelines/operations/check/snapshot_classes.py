"""Serializer snapshot classes of users, held against what Flink asks of them; read from class files.

Flink makes a snapshot object by its class name with `InstantiationUtil.instantiate`, before it reads the serializer.
Its documentation ("Custom Serialization for Managed State", best practices) asks for a class of its own for each
serializer, and for no Java serialization inside.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from state_pipelines.javaclasses.classfile import Nesting
from state_pipelines.operations.check.check_report import StateCheck
from state_pipelines.operations.jobs.job_state import Job, Subject
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.snapshot_classes import JAVA_STREAM, is_flinks
from state_pipelines.serializers.tree import Opaque, Serializer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.javaclasses.classfile import JavaClass
    from state_pipelines.javaclasses.classpath import ClassPath

_JAVA_SERIALIZATION = frozenset({"java.io.ObjectOutputStream", "java.io.ObjectInputStream"})
_STATIC = (
    "Make it a public class, static where it is nested, with a public constructor without arguments, under the name "
    "that the snapshot stores"
)


def judge_snapshot_classes(job: Job, classes: ClassPath) -> Iterator[StateCheck]:
    """Yield problems of the serializer snapshot classes of a job, and of the others among its class files."""
    stored = _list_snapshot_classes(job)
    for name in sorted({*stored, *_find_snapshot_classes(classes)}):
        found = classes.find(name)
        if found is None or (name not in stored and (found.is_abstract or found.is_interface)):
            continue
        problem = _find_problem(found)
        if problem and name in stored:
            yield _make_check(
                Outcome.INCOMPATIBLE,
                f"{name} {problem}: Flink cannot make an object of it, so the restore fails",
                _STATIC,
                f"Could not instantiate type '{name}'",
            )
        elif problem:
            reason = f"{name}, which this snapshot does not hold, {problem}: no snapshot with it can be restored"
            yield _make_check(Outcome.AS_IS, reason, _STATIC)
        owners = _list_owners(name, classes)
        if len(owners) > 1:
            reason = f"{name} is the snapshot class of {' and '.join(owners)}: neither can change without the other"
            yield _make_check(Outcome.AS_IS, reason, "Give each serializer a snapshot class of its own")
        if found.references & _JAVA_SERIALIZATION:
            reason = f"{name} writes Java objects, which no other version of the code can be sure to read"
            yield _make_check(Outcome.AS_IS, reason, "Write names and values (writeUTF, writeInt, nested snapshots)")
    for name in sorted(_list_java_streams(job)):
        reason = f"the snapshot of {name} consists of Java objects, which no other version of the code is sure to read"
        yield _make_check(Outcome.AS_IS, reason, "Write names and values (writeUTF, writeInt, nested snapshots)")


def _make_check(outcome: Outcome, reason: str, remedy: str, error: str = "") -> StateCheck:
    return StateCheck(
        operator=None,
        state=None,
        kind="",
        subject=Subject.SNAPSHOT_CLASS,
        outcome=outcome,
        reason=reason,
        remedy=remedy,
        error=error,
    )


def _find_problem(found: JavaClass) -> str:
    """Why `InstantiationUtil.checkForInstantiation` refuses a class; empty when it does not."""
    match found.nesting:
        case Nesting.ANONYMOUS:
            return "is an anonymous class"
        case Nesting.LOCAL:
            return "is a local class"
        case Nesting.INNER:
            return "is an inner class that is not static"
    if not found.is_public:
        return "is not public"
    if found.is_abstract or found.is_interface:
        return "is abstract"
    if not any(each.name == "<init>" and not each.parameters and each.is_public for each in found.methods):
        return "has no public constructor without arguments"
    return ""


def _list_owners(name: str, classes: ClassPath) -> list[str]:
    """The serializer classes that make the snapshot."""
    owners = []
    for entry in classes.entries:
        for candidate, parent in entry.super_classes():
            # Snapshots may make their own copies, and factories make serializers.
            if _is_serializer(parent, classes) and (found := classes.find(candidate)) and name in found.creates:
                owners.append(candidate)
    return sorted(set(owners))


def _is_serializer(name: str, classes: ClassPath) -> bool:
    while not is_flinks(name):
        found = classes.find(name)
        if found is None or found.parent is None:
            return False
        name = found.parent.name
    return "Serializer" in name and "Snapshot" not in name


def _find_snapshot_classes(classes: ClassPath) -> set[str]:
    """The serializer snapshot classes of users among class files."""
    children = defaultdict(set)
    for entry in classes.entries:
        for name, parent in entry.super_classes():
            children[parent].add(name)
    found: set[str] = set()
    pending = [each for each in children if is_flinks(each) and "Serializer" in each and each.endswith("Snapshot")]
    while pending:
        fresh = {each for each in children[pending.pop()] if not is_flinks(each)} - found
        found |= fresh
        pending += fresh
    return found


def _list_snapshot_classes(job: Job) -> set[str]:
    return {node.snapshot_class for node in _walk(job) if node.snapshot_class and not is_flinks(node.snapshot_class)}


def _list_java_streams(job: Job) -> set[str]:
    opaque = (node for node in _walk(job) if isinstance(node, Opaque))
    return {node.unknown_class for node in opaque if node.raw is not None and node.raw.startswith(JAVA_STREAM)}


def _walk(job: Job) -> Iterator[Serializer]:
    pending = [each.key for each in job.operators if each.key is not None]
    pending += [node for each in job.operators for state in each.states for node in state.serializers.values()]
    while pending:
        node = pending.pop()
        yield node
        pending += node.nested
