"""Unresolved types of a job: serializers that its classes do not determine, with reason and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.serializers import build
from state_pipelines.serializers.text import describe, quote
from state_pipelines.serializers.tree import Opaque, Serializer

if TYPE_CHECKING:
    from state_pipelines.javaclasses.classfile import JavaClass


@dataclass(frozen=True, kw_only=True)
class UnresolvedType(Opaque):
    """A serializer that the classes do not tell; compares as undetermined.

    Attributes:
        reason: why not.
        remedy: what would tell.
    """

    snapshot_class: str = ""
    raw: bytes = b""
    reason: str
    remedy: str = ""


@describe.register
def _describe_unresolved(node: UnresolvedType) -> str:
    return f"Unresolved<{quote(node.unknown_class)}>"


def unknown_arguments(found: JavaClass) -> UnresolvedType:
    """A generic class without type arguments."""
    parameters = ", ".join(found.parameters)
    return UnresolvedType(
        unknown_class=found.name,
        reason=f"{found.name} has unbound type parameters ({parameters})",
        remedy=f"Name the type with its arguments: {found.name}<…>",
    )


def made_by_factory(what: str) -> UnresolvedType:
    """A class or field whose serializer a factory makes."""
    return UnresolvedType(
        unknown_class=what,
        reason="a factory (`@TypeInfo` or the configuration) makes its serializer, which only Java can run",
        remedy="Name its type in readable form in a description of the job",
    )


def generated_by_avro(found: JavaClass) -> Serializer:
    """The serializer of a class that Avro generated, if its schema can be read."""
    if found.schema_json:
        return build.avro(found.name, found.schema_json)
    return UnresolvedType(
        unknown_class=found.name,
        reason=f"the Avro schema of {found.name} cannot be read from its class file",
        remedy="Give the schema as a file",
    )
