"""Header of keyed state: key serializer and the states, in the order of their ids.

* `KeyedHeader`, `read_keyed_header`, `write_keyed_header`: canonical files, heap native files and the meta stream of
  RocksDB snapshots have the same header. Source: `KeyedBackendSerializationProxy`.
* `name_key_coder`: keys of Beam: bytes of a coder that the header does not name, but that states of the same operator
  do. The key selector of a stateful transform takes the key out of a key-value pair and encodes it with the key coder
  of the pair (`KvToByteBufferKeySelector`, `FlinkKeyUtils.encodeKey`: nested context). Elements that wait, and those
  that are sorted, are such pairs or work items with the same key coder, each with timestamp and window. Source:
  `org.apache.beam.runners.flink.translation.wrappers.streaming.DoFnOperator`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import encode_modified_utf8
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.beam import derive_coder
from state_pipelines.codecs.columns import walk_layout
from state_pipelines.errors import UnsupportedError, Where, at, older_than_promised, unsupported_version
from state_pipelines.serializers.beam import KEY_CODER, BeamSerializer, Coder
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.snapshot_classes import OpenBodyError, read_settled
from state_pipelines.serializers.state_meta_info import (
    BackendStateType,
    StateMetaInfo,
    read_state_meta_infos,
    unread_state,
    write_state_meta_infos,
)
from state_pipelines.serializers.tree import ListOf, Timer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_classes import DeclaredSerializer
    from state_pipelines.serializers.tree import Serializer

_INPUT_STATES = frozenset({"pushed-back-elements", "sortBuffer"})
_PAIRS = ("KvCoder", "KeyedWorkItemCoder")

States = tuple["StateMetaInfo", ...]


def name_key_coder(key: Serializer, states: States) -> tuple[Serializer, States]:
    """Name the coder of keys that Beam stores as bytes, so that these keys can be decoded.

    The coder is found in the serializers of the states that Beam keeps for its inputs, and becomes a component of the
    coder of the key bytes, in the returned key serializer and states. They are returned unchanged if Beam does not
    store keys as bytes, these states name no coder or several, keys may be null, or the coder has no layout here.
    """
    if not isinstance(key, BeamSerializer) or not key.coder.is_key_bytes or key.coder.components:
        return key, states
    found = set(_list_key_coders(states))
    if len(found) != 1:
        return key, states
    (inner,) = found
    if isinstance(derive_coder(inner), lay.Optional | lay.Constant):
        # Keys may be null. Beam hashes the bytes to which it encodes null, while a decoded null would have the hash 0,
        # so the keys are not decoded.
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


VERSION = 6

# Pattern of the four bytes after the name of a state: an ordinal of `BackendStateType`, 0 to 4.
_KIND = rb"\0\0\0[\0-\x04]"

UNREAD_NAME = "_unread_state_"
"""Beginning of the placeholder names of states whose names cannot be read; the state id follows."""


@dataclass(frozen=True, kw_only=True)
class KeyedHeader:
    """Header of a file of keyed state: key serializer and states.

    Attributes:
        version: 6 since Flink 1.8.
        compressed: each key-group section is a snappy framed stream; the header itself never is.
        key_serializer: serializer of the keys, which all states share.
        states: the states; the index of a state is its id in records.
        raw: bytes of a header of which not all can be read, to write it as it is; empty for other headers.
    """

    version: int = VERSION
    compressed: bool = False
    key_serializer: Serializer
    states: tuple[StateMetaInfo, ...]
    raw: bytes = field(default=b"", repr=False)


def read_keyed_header(reader: Reader) -> KeyedHeader:
    """Read the header and leave the reader at the first byte after it.

    Raises:
        UnsupportedVersionError: version 1 to 5, written before 1.8, or a later one than 6.
        UnknownSerializerError: a serializer has no reader; it names the state.
        FormatError: the bytes are not the header of keyed state.
    """
    start = reader.position
    version = reader.i32()
    if 1 <= version < VERSION:
        raise older_than_promised(f"keyed state header of version {version}", Where(file=reader.name, offset=start))
    if version != VERSION:
        raise unsupported_version("keyed state", version, VERSION, Where(file=reader.name, offset=start))
    compressed = reader.bool()
    with at(path="key serializer"):
        key_serializer = read_snapshot(reader)
    try:
        states = read_state_meta_infos(reader)
    except OpenBodyError as error:
        unread = (
            unread_state(f"{UNREAD_NAME}{len(error.infos) + index}", BackendStateType.KEY_VALUE, error.node)
            for index in range(error.left)
        )
        error.infos = (*error.infos, *unread)
        error.header = KeyedHeader(
            version=version, compressed=compressed, key_serializer=key_serializer, states=error.infos
        )
        raise
    key_serializer, states = name_key_coder(key_serializer, states)
    return KeyedHeader(version=version, compressed=compressed, key_serializer=key_serializer, states=states)


def settle_keyed_header(
    data: bytes, name: str | None, end: int | None, declared: Sequence[DeclaredSerializer] = ()
) -> tuple[KeyedHeader, int]:
    """Read a header as far as possible; it may have serializer snapshots for which there is no reader.

    Args:
        data: begins with the header.
        name: of the file, for errors.
        end: end of the header in `data`; None if it is not known.
        declared: snapshot classes that the user declares.

    Returns:
        The header, and its end; -1 where the end is not known. A header that can be read only
        in part has its bytes (`raw`), and placeholders for the states that cannot be read.

    Raises:
        OpenBodyError: the end of the key serializer is not known, so that nothing is known of the states.
        UnsupportedError, FormatError: as `read_keyed_header`.
    """
    try:
        return read_settled(read_keyed_header, data, name, end=end, declared=declared)
    except OpenBodyError as error:
        if not isinstance(error.header, KeyedHeader):
            raise
        return replace(error.header, raw=data[: len(data) if end is None else end]), -1 if end is None else end


def name_states(header: KeyedHeader, names: Sequence[str], file: str | None) -> KeyedHeader:
    """Give the states of a database whose names could not be read from the header the names of its column families.

    Args:
        header: the header, which could not be read completely.
        names: of the column families, in any order.
        file: of the header, for the error.

    Raises:
        UnsupportedError: the order of these states, by which they get their ids, cannot be found in the header.
    """
    known = {info.name for info in header.states}
    left = [name for name in names if name not in known]
    found = {name: _find_name(name, header.raw) for name in left}
    ordered = sorted(left, key=lambda name: found[name][:1])
    if len(left) > 1 and not all(
        found[one] and found[other] and found[one][-1] < found[other][0] for one, other in pairwise(ordered)
    ):
        raise UnsupportedError(
            f"the header can be read only in part, and does not tell the order of the states {', '.join(left)}",
            where=Where(file=file),
            hint="Declare the class of the serializer that is not known (--serializer CLASS=LAYOUT)",
        )
    unnamed = iter(ordered)
    states = (
        replace(info, name=next(unnamed, info.name)) if info.name.startswith(UNREAD_NAME) else info
        for info in header.states
    )
    return replace(header, states=tuple(states))


def _find_name(name: str, data: bytes) -> list[int]:
    """Return the offsets in the header at which a state of this name may begin: its name, followed by its kind."""
    text = encode_modified_utf8(name)
    return [each.start() for each in re.finditer(re.escape(len(text).to_bytes(2, "big") + text) + _KIND, data)]


def write_keyed_header(writer: Writer, header: KeyedHeader) -> None:
    """Write a header; the mirror of `read_keyed_header`."""
    if header.raw:
        # Only version and compression flag may differ from the stored header. The rest is copied, because not all of it
        # can be read.
        writer.i32(header.version)
        writer.bool(header.compressed)
        writer.take(header.raw[5:])
        return
    writer.i32(header.version)
    writer.bool(header.compressed)
    write_snapshot(writer, header.key_serializer)
    write_state_meta_infos(writer, header.states)
