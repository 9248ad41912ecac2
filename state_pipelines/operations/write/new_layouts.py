"""Layouts of state that no snapshot describes yet, and the version of `_metadata` that its values ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo import FieldLists, oldest_metadata_version
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.errors import UsageError
from state_pipelines.javaclasses import load_field_lists
from state_pipelines.operations.jobs.flink_config import FLINK_2, parse_release
from state_pipelines.serializers.tree import Kryo

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot

KRYO_OF_FLINK_1, KRYO_OF_FLINK_2 = 2, 5


def make_layouts(
    classes: FieldLists | Iterable[str | PathLike[str]] | str | None = None,
    flink_version: str | None = None,
    snapshot: Snapshot | None = None,
) -> LayoutContext:
    """Return what the layouts of new state depend on.

    Args:
        classes: fields of the classes that Kryo writes and subclasses of POJOs; paths of jars, directories, class files
            or field lists. Default those that `snapshot` was opened with.
        flink_version: release that goes on from the state, such as 1.20 or 2.2: Kryo 2 is that of Flink 1.x, Kryo 5
            that of 2.x. Default the line of the snapshot, else 2.x.
        snapshot: that the new state is added to, whose `_metadata` says the line.

    Raises:
        UsageError: the release is none, or of another line than the snapshot.
        MissingFileError: a file does not exist.
    """
    wanted = None
    if flink_version is not None:
        wanted = KRYO_OF_FLINK_2 if parse_release(flink_version) >= FLINK_2 else KRYO_OF_FLINK_1
    if classes is None and snapshot is not None:
        classes = snapshot.classes
    if isinstance(classes, str):
        classes = [classes]
    lists = classes if classes is None or isinstance(classes, FieldLists) else load_field_lists(classes)
    if snapshot is None:
        return LayoutContext(kryo_version=wanted or KRYO_OF_FLINK_2, classes=lists)
    if wanted not in (None, snapshot.kryo_version):
        raise UsageError(
            f"the snapshot has the metadata of Flink {1 if snapshot.kryo_version == KRYO_OF_FLINK_1 else 2}.x, and "
            f"flink_version is {flink_version}: values of Kryo are of one release line in a snapshot",
            hint="Leave flink_version out",
        )
    known = snapshot.layout_context
    return LayoutContext(known.kryo_version, known.subclasses, lists, known.messages)


def has_kryo(serializers: Iterable[Serializer]) -> bool:
    """Return whether a serializer, or one inside it, is that of Kryo."""
    pending = list(serializers)
    while pending:
        node = pending.pop()
        if isinstance(node, Kryo):
            return True
        pending += node.nested
    return False


def choose_metadata_version(layouts: LayoutContext, serializers: Iterable[Serializer], default: int) -> int:
    """Return the version of `_metadata` for new state: `default`, unless values of Kryo 5 ask for that of Flink 2.x."""
    if layouts.kryo_version == KRYO_OF_FLINK_2 and has_kryo(serializers):
        return max(default, oldest_metadata_version(KRYO_OF_FLINK_2))
    return default
