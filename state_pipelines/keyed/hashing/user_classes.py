"""User classes among the serializers of keys: their names and fields, and why a hash is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs.avro.avro_records import parse_avro_schema
from state_pipelines.codecs.serializer_layouts import walk
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.keyed.hashing import avro, scala
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree.basic import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

FLINK_TUPLES = "org.apache.flink.api.java.tuple."


def class_name(node: tree.Serializer) -> str | None:
    """The class whose `hashCode` may be of the user's making; None for those that Java, Scala or Flink define."""
    match node:
        case tree.Pojo(pojo_class=name) | tree.Avro(runtime_class=name) | tree.CaseClass(case_class=name):
            return name
        case tree.Tuple(tuple_class=name) if not name.startswith(FLINK_TUPLES):
            return name
        case _:
            return None


def is_unknown(node: tree.Serializer) -> bool:
    """Whether the hash of the class must be found or given."""
    match node:
        case tree.Pojo() | tree.CaseClass():
            # A case class of flink-scala-api has the hash of its release of Scala, which no snapshot names.
            return True
        case tree.Avro():
            return not avro.is_settled(node)
        case tree.Tuple():
            return not (node.snapshot_class.endswith(".TupleSerializerSnapshot") or scala.is_tuple(node))
        case _:
            return False


def find_unknown_classes(serializer: tree.Serializer, known: Mapping[str, object]) -> dict[str, tree.Serializer]:
    """The classes inside a key whose hash must be found, innermost first, without those that are `known`."""
    found: dict[str, tree.Serializer] = {}
    for node in reversed([*walk(serializer)]):
        name = class_name(node)
        if name is not None and is_unknown(node) and name not in known:
            found.setdefault(name, node)
    return found


def field_nodes(node: tree.Serializer) -> dict[str, tree.Serializer]:
    """The fields of a class and their serializers; those of a tuple or case class are `f0`, `f1`, ….

    Fields of Avro records have no serializers of their own: each comes with the one of the record.

    Raises:
        UnsupportedError: the type of a field was lost before the snapshot was written.
    """
    match node:
        case tree.Pojo(fields=fields):
            found = {}
            for each in fields:
                if each.serializer is None:
                    raise UnsupportedError(f"the type of field {each.name} of {node.pojo_class} is not in the snapshot")
                found[each.name] = each.serializer
            return found
        case tree.Tuple(fields=nested) | tree.CaseClass(fields=nested):
            return {f"f{index}": serializer for index, serializer in enumerate(nested)}
        case tree.Avro(schema_json=schema):
            return dict.fromkeys(avro.field_names(parse_avro_schema(schema)), node)
        case _:
            return {}


def refuse_type(node: tree.Serializer) -> UsageError | UnsupportedError:
    """Why values of `node` have no hash here."""
    is_array = isinstance(node, tree.GenericArray) or (
        isinstance(node, tree.Basic) and node.kind in (*COMPONENTS, tree.BasicKind.STRING_ARRAY)
    )
    if is_array or isinstance(node, tree.Enum | tree.ScalaEnum):
        what = "an array" if is_array else "an enum constant"
        return UsageError(
            f"{what} cannot be a key: its hashCode differs from one JVM to the next, so Flink refuses it",
            hint="Key by its name or by a list, or wrap it in a Row if it is an array",
        )
    if getattr(node, "type_class", None) is not None or class_name(node) is not None:
        return unknown_hash(node)
    what = node.kind if isinstance(node, tree.Basic | tree.Variants) else type(node).__name__
    return UnsupportedError(
        f"the hash codes of {what} keys are not computed yet", hint="What leaves keys in their key groups still works"
    )


def unknown_hash(node: tree.Serializer) -> UnsupportedError:
    """The error for a user class whose hash is not known."""
    name = getattr(node, "type_class", None) or class_name(node)
    return UnsupportedError(
        f"the hashCode of {name} is code of the user's that no snapshot holds",
        hint="Give its hash; Objects.hash and records are a combination of the hashes of the fields",
    )
