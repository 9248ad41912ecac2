"""The new job of a check, from all that may describe it: a snapshot, a file, its classes, types and schemas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.javaclasses import list_fields, load_field_lists, open_class_path
from state_pipelines.operations.check.flink_upgrade import describe_upgraded_job
from state_pipelines.operations.jobs.job_files import load_job
from state_pipelines.operations.jobs.job_state import Job, describe_job
from state_pipelines.operations.jobs.retyped_job import (
    declare_type,
    extract_types,
    find_state_classes,
    list_assumed,
    read_schema,
    replace_avro,
    replace_classes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.operations.jobs.state_classes import StateClasses
    from state_pipelines.snapshot import Snapshot

_DESCRIPTIONS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class NewCode:
    """The code of a new job.

    Attributes:
        classes: paths of jars, directories, class files and field lists.
        types: texts `OPERATOR/STATE=TYPE`.
        schemas: texts `OPERATOR/STATE=FILE`.
    """

    classes: tuple[str, ...]
    types: tuple[str, ...]
    schemas: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether they say anything."""
        return any((self.classes, self.types, self.schemas))

    def describe(self, old: Job, release: tuple[int, int], file: str | None) -> Job:
        """The new job: as the file describes it, or the old one with the new code's types."""
        classes = open_class_path(self.classes)
        extraction = extract_types(old, classes, release)
        if file is None:
            job = replace(replace_classes(old, extraction), name=", ".join((*self.classes, *self.types, *self.schemas)))
            job = replace(job, metadata_version=None, kryo_version=None)
        else:
            job = load_job(file, old, release, classes)
        for text in self.types:
            name, kind = _split(text, "--type")
            job = declare_type(job, name, kind, extraction)
        for text in self.schemas:
            name, path = _split(text, "--avro")
            job = replace_avro(job, name, read_schema(path))
        state_classes: tuple[StateClasses, ...] = ()
        if file is None and self.classes:
            given = [text.partition("=")[0] for text in (*self.types, *self.schemas)]
            state_classes = find_state_classes(job, classes, given=given)
            # Said of each state.
            extraction = replace(extraction, assumed=set())
        notes = () if file is not None and not self.types else tuple(list_assumed(extraction))
        notes = tuple(dict.fromkeys((*job.notes, *notes)))
        return replace(job, classes=list_fields(classes), notes=notes, state_classes=state_classes)


def is_description(path: str) -> bool:
    """Whether a path is that of a description of a job, by its ending; else it is that of a snapshot."""
    return path.lower().endswith(_DESCRIPTIONS)


def describe_new_job(
    old: Job,
    code: NewCode,
    release: tuple[int, int],
    *,
    new: str | None,
    open_other: Callable[[str], Snapshot],
) -> Job:
    """The new job: that of a snapshot, of a description, or the old one with new code or on a newer Flink.

    Args:
        old: the old job.
        code: the new code.
        release: of Flink that runs the new job.
        new: a snapshot or a description (.yaml, .json); None for the old job.
        open_other: opens a snapshot.

    Raises:
        UsageError: a snapshot and types describe it.
    """
    if new is None and not code:
        return describe_upgraded_job(old, release)
    if new is not None and not is_description(new):
        if code.types or code.schemas:
            raise UsageError("a snapshot of the new job says which types it has", hint="Leave out --type and --avro")
        job = describe_job(open_other(new))
        return replace(job, classes=load_field_lists(code.classes) if code.classes else None)
    return code.describe(old, release, new)


def _split(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise UsageError(f"{option} {text!r} is not of the form OPERATOR/STATE=…")
    return name, value
