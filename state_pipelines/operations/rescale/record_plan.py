"""Plan of the move of an operator's records to other files or key groups: its tasks and its hash codes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import UnsupportedError, Where
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.keys import KeyFilter, encode_keys
from state_pipelines.operations.rescale.found_hashes import find_key_hasher
from state_pipelines.operations.rescale.record_regrouping import Collect, InputFiles, Shuffle
from state_pipelines.operations.rescale.rescale_plan import RecordsPlan
from state_pipelines.operations.rescale.snapshot_merge import align_headers
from state_pipelines.operations.write.file_names import make_file_name
from state_pipelines.operations.write.spills import BLOCK
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.snapshot.snapshot_files import count_scans
from state_pipelines.storage import join
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import count_scans_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.operations.rescale.rescale_request import OperatorRequest, RescaleRequest
    from state_pipelines.operations.rescale.snapshot_merge import StatePairs
    from state_pipelines.snapshot import Operator
    from state_pipelines.storage import Location

SPLIT_SIZE = 128 << 20
"""Bytes of an old file that one task sorts for new key groups, unless that would be too many tasks."""

MOST_TASKS = 4096
"""Tasks that sort the records of an operator, at most, about; then they are larger.

Every new subtask reads from the spill of each.
"""

MOST_BLOCKS = 4096
"""Blocks of sorted records, about, from which on each spill of an operator becomes a single one.

That takes a second pass over the records; below, it costs more than the reads that it saves.
"""


@dataclass(frozen=True, kw_only=True)
class RecordMove:
    """Records of one operator on their way.

    Attributes:
        sources: the operator in every snapshot that its state comes from, the first one first.
        own: what is asked of it.
        request: the whole request.
        target: directory of the new snapshot.
        parallelism: of the new operator.
        max_parallelism: of the new operator.
        verify: new files are read again.
    """

    sources: tuple[Operator, ...]
    own: OperatorRequest
    request: RescaleRequest
    target: Location
    parallelism: int
    max_parallelism: int
    verify: bool

    def plan(self, reason: str) -> tuple[RecordsPlan, tuple[str, ...]]:
        """The tasks, and which hash codes of user classes were found.

        Args:
            reason: why records must move, for errors.

        Raises:
            UnsupportedError: raw keyed state would have to move, or the hash of a class in the keys is not known.
            UsageError: the chosen keys are not of the type of the keys.
        """
        keyed = [operator for operator in self.sources if has_keyed_state(operator)]
        for operator in keyed:
            unread = operator.snapshot.keyed_files.find_unread(operator.metadata, operator.snapshot.layout_context)
            for each in unread.values():
                raise UnsupportedError(
                    f"its records must move ({reason}), but its raw keyed state cannot: {each.reason}",
                    hint="Leave its max parallelism, its states and its keys as they are; with a RocksDB or changelog "
                    "snapshot convert it to canonical before",
                )
            for _, file in operator.keyed_files:
                for info in file.header.states:
                    if info.backend_type not in (BackendStateType.KEY_VALUE, BackendStateType.PRIORITY_QUEUE):
                        raise UnsupportedError(f"{info.backend_type} state is not moved", where=Where(state=info.name))
        files = [file for operator in keyed for _, file in operator.keyed_files]
        header, maps = align_headers(
            [file.header for file in files], self.own.drop_states, [file.name for file in files]
        )
        pairs = iter(maps)
        sources = [[(file, next(pairs)) for _, file in operator.keyed_files] for operator in keyed]
        context = RecordContext(self.max_parallelism, self.sources[0].record_context.layouts)
        if all(operator.max_parallelism == self.max_parallelism for operator in keyed):
            collected = tuple(
                InputFiles(
                    tuple(file for file, _ in files),
                    tuple(each for _, each in files),
                    operator.record_context,
                    self._key_filter,
                    operator.snapshot.location.directory,
                )
                for operator, files in zip(keyed, sources, strict=True)
            )
            return RecordsPlan(header, context, collects=tuple(self._collect(header, context, collected))), ()
        hasher: KeyHasher | None = None
        hashes: tuple[str, ...] = ()
        if any(operator.max_parallelism % self.max_parallelism for operator in keyed):
            hasher, hashes = find_key_hasher(keyed, header.key_serializer, dict(self.own.key_hashes))
            if hasher is None:
                return RecordsPlan(header, context), hashes
        size = sum(operator.keyed_size for operator in keyed)
        shuffles = tuple(
            tuple(self._shuffle(operator, files, hasher, size)) for operator, files in zip(keyed, sources, strict=True)
        )
        return RecordsPlan(header, context, shuffles=shuffles, hasher=hasher), hashes

    @cached_property
    def _key_filter(self) -> KeyFilter | None:
        choice = self.own.keys
        if choice is None:
            return None
        serializer = next(file.header.key_serializer for each in self.sources for _, file in each.keyed_files)
        layout = derive_layout(serializer, self.sources[0].snapshot.layout_context)
        return KeyFilter(frozenset(encode_keys(layout, choice.keys)), choice.keep)

    def _collect(
        self, header: KeyedHeader, context: RecordContext, inputs: tuple[InputFiles, ...]
    ) -> Iterator[Collect]:
        size = sum(each.keyed_size for each in self.sources) // self.parallelism
        directories = (self.target, *(each.snapshot.location.directory for each in self.sources))
        is_remote = not all(map(is_local, directories))
        for subtask in range(self.parallelism):
            key_groups = compute_key_group_range(subtask, self.parallelism, self.max_parallelism)
            overlapping = []
            for given in inputs:
                chosen = [
                    (file, pairs)
                    for file, pairs in zip(given.files, given.states, strict=True)
                    if file.key_groups.intersect(key_groups).number
                ]
                files, states = (tuple(each) for each in zip(*chosen, strict=True)) if chosen else ((), ())
                overlapping.append(replace(given, files=files, states=states))
            yield Collect(
                operator=self.sources[0].label,
                subtask=subtask,
                header=header,
                key_groups=key_groups,
                inputs=tuple(overlapping),
                context=context,
                target=join(self.target, make_file_name()),
                rule=self.request.on_equal,
                verify=self.verify,
                size=size,
                in_flight=1 + count_scans_ahead(size) if is_remote else 1,
            )

    def _shuffle(
        self, operator: Operator, files: Sequence[tuple[KeyedFile, StatePairs]], hasher: KeyHasher | None, size: int
    ) -> Iterator[Shuffle]:
        """The tasks of one source; `size` is bytes of the files of all sources."""
        split_size, merges = max(SPLIT_SIZE, size // MOST_TASKS), size // BLOCK > MOST_BLOCKS
        in_flight = count_scans(operator) if hasher is None or hasher.has_kernel else 1
        for file, pairs in files:
            for split in file.split(split_size, operator.record_context):
                yield Shuffle(
                    operator=operator.label,
                    source=split,
                    states=pairs,
                    context=operator.record_context,
                    max_parallelism=self.max_parallelism,
                    target=join(self.target, make_file_name()),
                    hasher=hasher,
                    key_filter=self._key_filter,
                    merges=merges,
                    in_flight=in_flight,
                )


def has_keyed_state(operator: Operator) -> bool:
    """Whether it has keyed state, managed or raw."""
    return any(each.managed_keyed_state or each.raw_keyed_state for each in operator.metadata.subtasks)
