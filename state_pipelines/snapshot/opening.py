"""Opening a snapshot: reads `_metadata` and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.metadata import read_metadata
from state_pipelines.serializers.text import parse
from state_pipelines.snapshot.snapshot import Snapshot
from state_pipelines.storage import PathMapping, parse_path_mapping, read_file, resolve_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from state_pipelines.codecs.kryo.fieldlists import FieldLists
    from state_pipelines.serializers.tree import Serializer


def open_snapshot(
    path: str,
    *,
    path_mapping: PathMapping | Iterable[str] = (),
    uids: Iterable[str] = (),
    classes: FieldLists | None = None,
    key_serializers: Mapping[str, Serializer] | None = None,
    connectors: Mapping[str, str] | None = None,
) -> Snapshot:
    """Open a checkpoint or savepoint.

    Args:
        path: directory of the snapshot or its `_metadata` file; local path or fsspec URL.
        path_mapping: `FROM=TO` texts for directories that were moved (absolute handles name them).
        uids: operator uids, to name the operators of snapshots that store only hashes (before Flink 2.0).
        classes: fields of classes that the snapshot does not describe (see `codecs.kryo.load_classes`): those behind
            Kryo, and subclasses of POJOs in snapshots of the heap backend.
        key_serializers: by uid or operator id the serializer of the keys, for changelog state of which nothing was
            materialized yet and whose keys are of a type that cannot be found out.
        connectors: by uid or operator id the connector that wrote its list states, where several could have.

    Raises:
        NotFoundError: there is no snapshot.
        FormatError: `_metadata` is not what the format says.
        UnsupportedError: a metadata version that is not known.
    """
    location = resolve_snapshot(path)
    mapping = path_mapping if isinstance(path_mapping, PathMapping) else parse_path_mapping(path_mapping)
    metadata = read_metadata(read_file(location.metadata), str(location.metadata))
    return Snapshot(location, metadata, mapping, tuple(uids), classes, key_serializers, connectors)


def parse_key_serializers(texts: Iterable[str]) -> dict[str, Serializer]:
    """Serializers by operator from texts `OPERATOR=TYPE`, types in the readable form of `inspect`.

    Raises:
        UsageError: a text has another form, or the type is not known.
    """
    return {operator: parse(described) for operator, described in _split(texts, "OPERATOR=TYPE", "orders=String")}


def parse_connectors(texts: Iterable[str]) -> dict[str, str]:
    """Connectors by operator from texts `OPERATOR=NAME`, names as `inspect` shows them.

    Raises:
        UsageError: a text has another form.
    """
    return dict(_split(texts, "OPERATOR=NAME", "order-source=kafka"))


def _split(texts: Iterable[str], form: str, example: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        operator, _, value = text.partition("=")
        if not operator or not value:
            raise UsageError(f"{text!r} does not have the form {form}", hint=f"Such as {example}")
        yield operator, value
