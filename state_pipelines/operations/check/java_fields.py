"""Java fields of POJOs in the class files of the new job: whether Flink finds them, and whether they can hold null.

No serializer snapshot says either: `int` and `Integer` have one serializer, and a field that became transient is simply
not in the new snapshot. Source: `PojoFieldUtils.getField`, `PojoSerializer.deserialize` (sets fields by reflection).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo.classes import OBJECT_NAME, PRIMITIVES
from state_pipelines.javaclasses.classfile import RECORD_NAME
from state_pipelines.javaclasses.classpath import ClassFieldLists
from state_pipelines.serializers.compatibility import Finding, Outcome
from state_pipelines.serializers.compatibility.rules import list_paths
from state_pipelines.serializers.text import quote
from state_pipelines.serializers.tree import Kryo, Pojo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.codecs.kryo.classes import FieldLists, JavaType
    from state_pipelines.operations.check.data_classes import DataClasses
    from state_pipelines.serializers.compatibility.objects import FindField
    from state_pipelines.serializers.tree import Serializer

_ROOTS = (OBJECT_NAME, RECORD_NAME)


def look_up_fields(classes: FieldLists) -> FindField:
    """Make the function that finds Java fields in the classes of a job."""
    return lambda owner, name: _find_owner(classes, owner, name)


def _find_owner(classes: FieldLists, owner: str, name: str) -> str | None:
    """Find the class that has a field: `owner` or a super class; empty if none has it, None if not all are known."""
    seen: set[str] = set()
    while owner not in _ROOTS and owner not in seen:
        seen.add(owner)
        declared = classes.classes.get(owner)
        if declared is None:
            return None
        if any(each == name for each, _ in declared.fields):
            return owner
        found = classes.class_path.find(owner) if isinstance(classes, ClassFieldLists) else None
        # Field lists leave out static and transient fields, which Flink finds.
        if found is None or not isinstance(classes, ClassFieldLists) or owner in classes.class_path.declared.classes:
            return None
        if any(each.name == name for each in found.fields):
            return owner
        owner = found.parent.name if found.parent is not None else OBJECT_NAME
    return ""


def judge_nulls(
    path: str, serializer: Serializer, old: FieldLists, new: FieldLists, data: DataClasses | None
) -> Iterator[Finding]:
    """Yield the fields of POJOs that are primitive in the new job, as far as the data hold nulls in them or may do so.

    Args:
        path: of the serializer.
        serializer: of the snapshot.
        old: classes of the snapshot; a field that is primitive there holds no nulls.
        new: classes of the new job.
        data: classes and nulls in the data; None where the data were not read.
    """
    nodes = list(list_paths(serializer, path))
    pojos = [(where, node) for where, node in nodes if isinstance(node, Pojo)]
    for where, node in pojos:
        names = [each.name for each in node.fields if _became_primitive(old, new, node.pojo_class, each.name)]
        if not names:
            continue
        if data is None:
            yield _leave_open(where, node.pojo_class, names, "whether the data hold nulls there is not known")
            continue
        holding = [name for name in names if (node.pojo_class, name) in data.null_fields]
        yield from (_refuse(f"{where}.{quote(name)}", node.pojo_class, name) for name in holding)
        if not holding and data.undecoded:
            yield _leave_open(where, node.pojo_class, names, f"not all data can be decoded: {data.undecoded[0]}")
    if data is not None and pojos:
        listed = {node.pojo_class for _, node in pojos} | {
            node.type_class for _, node in nodes if isinstance(node, Kryo)
        }
        for name, field in sorted(data.null_fields):
            bases = {*_list_bases(old, name), *_list_bases(new, name)}
            above = [where for where, node in pojos if node.pojo_class in bases]
            if name not in listed and above and _became_primitive(old, new, name, field):
                yield _refuse(f"{above[0]}({name}).{quote(field)}", name, field)


def _became_primitive(old: FieldLists, new: FieldLists, name: str, field: str) -> bool:
    return _is_primitive(_find_type(new, name, field)) and not _is_primitive(_find_type(old, name, field))


def _is_primitive(of: JavaType | None) -> bool:
    return of is not None and of.name in PRIMITIVES


def _find_type(classes: FieldLists, name: str, field: str) -> JavaType | None:
    for each in (name, *_list_bases(classes, name)):
        declared = classes.classes.get(each)
        if declared is not None and (found := dict(declared.fields).get(field)) is not None:
            return found
    return None


def _list_bases(classes: FieldLists, name: str) -> Iterator[str]:
    """Yield the super classes of a class, as far as they are known."""
    seen = {name}
    declared = classes.classes.get(name)
    while declared is not None and declared.base and declared.base not in seen:
        seen.add(declared.base)
        yield declared.base
        declared = classes.classes.get(declared.base)


def _leave_open(path: str, name: str, fields: list[str], reason: str) -> Finding:
    several = len(fields) > 1
    return Finding(
        path=path,
        old=None,
        new=None,
        outcome=Outcome.UNDETERMINED,
        reason=f"the field{'s' if several else ''} {', '.join(map(quote, fields))} of {name} "
        f"{'are' if several else 'is'} primitive in the new job and cannot be null: {reason}",
        remedy="Look into the data with --scan, or show by --classes that the old fields are primitive too",
    )


def _refuse(path: str, name: str, field: str) -> Finding:
    return Finding(
        path=path,
        old=None,
        new=None,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"the data hold nulls in the field {quote(field)} of {name}, which is primitive in the new job: HashMap "
        "fails during the restore, RocksDB when it reads the first of them",
        remedy=f"Keep the class of the box as type of {quote(field)}, or replace the nulls by a `set` step in a "
        "migration",
        unnoticed=True,
    )
