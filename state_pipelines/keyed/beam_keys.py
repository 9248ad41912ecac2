"""Keys of Beam: bytes of a coder that the header does not say, but that states of the same operator name.

The key selector of a stateful transform takes the key out of a key-value pair and encodes it with the key coder of the
pair (`KvToByteBufferKeySelector`, `FlinkKeyUtils.encodeKey`: nested context). Elements that wait, and those that are
sorted, are such pairs or work items with the same key coder, each with timestamp and window.
Source: `org.apache.beam.runners.flink.translation.wrappers.streaming.DoFnOperator`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.beam.beam_layouts import derive_coder
from state_pipelines.codecs.columns import walk_layout
from state_pipelines.serializers.beam import KEY_CODER, BeamSerializer, Coder
from state_pipelines.serializers.tree import ListOf, Timer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

_INPUT_STATES = frozenset({"pushed-back-elements", "sortBuffer"})
_PAIRS = ("KvCoder", "KeyedWorkItemCoder")

States = tuple["StateMetaInfo", ...]


def name_key_coder(key: Serializer, states: States) -> tuple[Serializer, States]:
    """Return key serializer and states with the coder of the keys inside that of their bytes.

    They are as given where the keys are no bytes of Beam, no state names a coder or several name another one each, keys
    may be null, or nothing here reads the values of the coder.
    """
    if not isinstance(key, BeamSerializer) or not key.coder.is_key_bytes or key.coder.components:
        return key, states
    found = set(_list_key_coders(states))
    if len(found) != 1:
        return key, states
    (inner,) = found
    if isinstance(derive_coder(inner), lay.Optional | lay.Constant):
        # Nulls have bytes, whose hash the key has.
        return key, states
    if any(isinstance(each, lay.Dynamic) for each in walk_layout(derive_coder(inner))):
        return key, states
    named = replace(key, coder=replace(key.coder, components=((KEY_CODER, inner),)))
    return named, tuple(_name_in_timers(each, key, named) for each in states)


def _list_key_coders(states: States) -> Iterator[Coder]:
    for info in states:
        elements = dict(info.serializers).values() if info.name in _INPUT_STATES else ()
        for serializer in elements:
            element = serializer.element if isinstance(serializer, ListOf) else serializer
            coder = element.coder if isinstance(element, BeamSerializer) else None
            if coder is not None and (value := coder.component("valueCoder")) is not None:
                pair = coder if coder.class_name.endswith(_PAIRS) else value
                inner = pair.component(KEY_CODER)
                if pair.class_name.endswith(_PAIRS) and inner is not None:
                    yield inner


def _name_in_timers(info: StateMetaInfo, key: Serializer, named: Serializer) -> StateMetaInfo:
    changed = tuple(
        (name, replace(each, key=named) if isinstance(each, Timer) and each.key == key else each)
        for name, each in info.serializers
    )
    return info if changed == info.serializers else replace(info, serializers=changed)
