"""The serializers of `tests/flink/java/classic`, registered the way a user does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.codecs.json import register_json, to_json
from state_pipelines.codecs.layout import JavaText, Layout, register_layout
from state_pipelines.serializers.build import map_of
from state_pipelines.serializers.registry import register_composite_with_outer, register_simple
from state_pipelines.serializers.tree import Composite, Serializer

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.codecs.json import Json
    from state_pipelines.codecs.layout import Derive
    from state_pipelines.serializers.snapshot_classes import CompositeMarks

NOTE = "classic.NoteSerializer$NoteSnapshot"
LABELLED_MAP = "classic.LabelledMapSerializer$LabelledMapSnapshot"


@register_simple(NOTE, serializer="classic.NoteSerializer")
@dataclass(frozen=True, kw_only=True)
class Note(Serializer):
    """Text by `writeUTF`."""


@register_layout(Note)
def lay_note(node: Note, derive: Derive) -> Layout:
    return JavaText()


@dataclass(frozen=True, kw_only=True)
class LabelledMap(Composite):
    """A map serializer with outer data."""

    label: str
    key: Serializer
    value: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        return self.key, self.value


def read_label(reader: Reader, version: int) -> str:
    assert version == 2
    return reader.utf()


def write_label(writer: Writer, node: LabelledMap) -> None:
    writer.utf(node.label)


@register_composite_with_outer(
    LABELLED_MAP, arity=2, read_outer=read_label, write_outer=write_label, serializer="classic.LabelledMapSerializer"
)
def build_labelled_map(marks: CompositeMarks, parts: tuple[Serializer, ...], label: str) -> LabelledMap:
    return LabelledMap(**marks, label=label, key=parts[0], value=parts[1])


@register_layout(LabelledMap)
def lay_labelled_map(node: LabelledMap, derive: Derive) -> Layout:
    return derive(map_of(node.key, node.value))


@register_json(LabelledMap)
def show_labelled_map(node: LabelledMap, value: Any) -> Json:
    return to_json(map_of(node.key, node.value), value)
