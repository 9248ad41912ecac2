"""Writes sections of raw keyed state, and timers in them, as Flink does (`InternalTimerServiceSerializationProxy`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.keyed.raw_timers import MARKER, NEVER_STARTED, VERSION, InternalTimersSnapshot
from state_pipelines.serializers.registry import write_nested

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.metadata.handles import KeyGroupRange


def write_raw_timers(services: Sequence[InternalTimersSnapshot]) -> bytes:
    """A section of timers; `read_raw_timers` reads it."""
    writer = Writer()
    writer.take(MARKER)
    writer.i32(VERSION)
    writer.i32(len(services))
    for service in services:
        writer.utf(service.name)
        write_nested(writer, service.key)
        write_nested(writer, service.namespace)
        for timers in (service.event, service.processing):
            writer.i32(len(timers.stops))
            writer.take(
                b"".join(
                    _move_timestamp(timers.data[start:stop].tobytes())
                    for start, stop in zip(timers.starts, timers.stops, strict=True)
                )
            )
    return writer.getvalue()


def _move_timestamp(timer: bytes) -> bytes:
    """The raw form of a canonical timer: its timestamp last, and with a plain sign."""
    return timer[8:] + bytes([timer[0] ^ 0x80]) + timer[1:8]


def write_raw_sections(sections: Mapping[int, bytes], key_groups: KeyGroupRange) -> tuple[bytes, tuple[int, ...]]:
    """The stream of raw keyed state with these sections, and the offsets for its handle.

    Args:
        sections: section by key group; key groups without one get `NEVER_STARTED`.
        key_groups: range of the handle.
    """
    offsets, chunks, position = [], [], 0
    for key_group in key_groups:
        offsets.append(position if key_group in sections else NEVER_STARTED)
        chunks.append(sections.get(key_group, b""))
        position += len(chunks[-1])
    return b"".join(chunks), tuple(offsets)
