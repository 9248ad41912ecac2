"""Records moved to other key groups and files, as bytes: the plan of an operator, its tasks and stages.

No value is decoded. Under a new max parallelism any record can be stored in any new file.

* `Shuffle` sorts a range of an old file into a spill, `Gather` writes the file of one new subtask from all spills.
  Where key groups stay, `Collect` writes that file from the old ones at once. Each is a task that any thread or process
  can do, and that can be done again.
* `RescalePlan`, `OperatorTasks`, `move_records`: the plan and its stages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from heapq import merge
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import NotFoundError, ProofError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.canonical import (
    Block,
    CanonicalWriter,
    Index,
    RecordBuffer,
    frame_section,
    gather_runs,
    join_runs,
    open_canonical,
    sum_runs,
)
from state_pipelines.keyed.digests import RecordDigest, digest_run, sum_digests
from state_pipelines.keyed.key_groups import assign_key_groups, compute_key_group_range, key_group_prefix_size
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.keys import KeyFilter, encode_keys
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operations.rescale.snapshot_merge import (
    MergeRule,
    StatePairs,
    align_headers,
    count_threads,
    find_key_hasher,
    hash_keys,
    is_timer,
    merge_duplicates,
    require_key_groups,
)
from state_pipelines.operations.write.keyed_rewrite import WrittenFile, align_key_groups, make_file_name
from state_pipelines.operations.write.spills import (
    BATCH,
    BLOCK,
    Spill,
    choose_batch,
    create_merged_spill,
    create_spill,
    cut_windows,
    open_spills,
    stream_runs,
)
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.snapshot_files import count_scans
from state_pipelines.storage import Location, create_file, join
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import begin_together, count_scans_ahead, scan_ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, Runs
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import KeyedStateHandle
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.rescale.assembly import FileAssembly, MovedKeyGroups
    from state_pipelines.operations.rescale.rescale_request import (
        EditedOperator,
        EditedSnapshot,
        OperatorRequest,
        RescaleRequest,
    )
    from state_pipelines.operations.write.publication import FileMode
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot import Operator

Digests = dict[str, RecordDigest]


@dataclass(frozen=True)
class Shuffle:
    """Task that reads an old file, or a range of it, and sorts its records by new key group into a spill.

    First of two stages if the max parallelism changes; in the second, `Gather` tasks write the new files.

    Attributes:
        operator: label of the operator, for errors.
        source: the old file, or a range of it (`KeyedFile.split`).
        states: (old state id, new state id) of the states that stay.
        max_parallelism: number of new key groups.
        target: file of the spill; `move_records` replaces its planned directory by the directory of temporary files.
        hasher: computes hash codes of keys. None if they are not needed: the new number of key groups equals or divides
            the old one.
        key_filter: selects the keys that stay; None keeps all.
        key_groups: range of old key groups to read; None for all that the handle of the file names.
        digests: compute digests of all records read, so that the proof need not read the old file.
        merges: merge the blocks of the spill into one. Set if all spills together would have too many blocks.
        block: bytes of records that are sorted at once.
        batch: bytes of records that are read at once when blocks are merged.
        in_flight: see `Work`.
    """

    operator: str
    source: KeyedFile
    states: StatePairs
    max_parallelism: int
    target: Location
    hasher: KeyHasher | None
    key_filter: KeyFilter | None = None
    key_groups: KeyGroupRange | None = None
    digests: bool = False
    merges: bool = False
    block: int = BLOCK
    batch: int = BATCH
    in_flight: int = 1

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads; see `Work`."""
        return count_threads(self.hasher, [self.source])

    def run(self) -> Spill:
        """Write the spill.

        Raises:
            ProofError: the hash of a key gives another old key group than the one in which the key is stored.
            UsageError: there is no hasher, but the new number of key groups does not divide the old one.
            StateError: the old file cannot be read.
        """
        if self.hasher is None and self.source.context.max_parallelism % self.max_parallelism:
            raise UsageError("without the hashes of the keys the new max parallelism must divide the old one")
        infos = self.source.header.states
        # Read only the key groups that the handle of the file names: the stream may hold others, too.
        wanted = self.source.key_groups
        if self.key_groups is not None:
            wanted = wanted.intersect(self.key_groups)
        pairs = dict(self.states)
        maps = frozenset(new for old, new in self.states if infos[old].state_type == StateKind.MAP)
        dropped = {infos[old].name: RecordDigest() for old in pairs}
        found: Digests = {}
        buffer = RecordBuffer(key_group_prefix_size(self.max_parallelism), maps, self.block)
        if self.merges:
            creating = create_merged_spill(self.target, buffer, self.max_parallelism, self.batch)
        else:
            creating = create_spill(self.target, buffer, self.max_parallelism)
        with at(operator=self.operator), creating as spill:
            for old, records in self.source.scan(list(pairs), wanted):
                name = infos[old].name
                if self.digests:
                    found[name] = found.get(name, RecordDigest()) + digest_run(records, is_map=pairs[old] in maps)
                hashes = None if self.hasher is None else self._hash(old, records, self.hasher)
                if self.key_filter is not None:
                    kept = self.key_filter.select(records, timers=is_timer(infos[old]))
                    dropped[name] += _digest_rest(records, kept, is_map=pairs[old] in maps)
                    records = records.select(np.flatnonzero(kept))
                    hashes = None if hashes is None else hashes[kept]
                if hashes is not None:
                    records = replace(records, key_groups=assign_key_groups(hashes, self.max_parallelism))
                elif self.max_parallelism != self.source.context.max_parallelism:
                    # The new max parallelism divides the old one: no hash is needed to find the new key group.
                    records = replace(records, key_groups=records.key_groups % np.int32(self.max_parallelism))
                spill.add(pairs[old], records)
        states = {infos[old].name: spill.states.get(new, RecordDigest()) for old, new in self.states}
        return Spill(self.target, self.max_parallelism, spill.blocks, states, dropped, found)

    def _hash(self, state: int, records: KeyedRecords, hasher: KeyHasher) -> npt.NDArray[np.int32]:
        """Compute the hash codes of the keys, and check that they give the key groups in which the records are stored.

        Raises:
            ProofError: a hash code gives another key group.
        """
        header = self.source.header
        with at(state=header.states[state].name, file=records.file):
            hashes = hash_keys(hasher, records, timers=is_timer(header.states[state]))
        require_key_groups(self.operator, self.source, state, records, hashes)
        return hashes


@dataclass(frozen=True)
class Gather:
    """Task that writes the file of one new subtask from the spills of `Shuffle` tasks.

    Attributes:
        operator: label of the operator, for errors.
        subtask: index of the new subtask.
        header: header of the new file.
        key_groups: key groups of the new subtask.
        sources: for each snapshot that is merged, in order, its spills.
        context: record context of the new operator.
        target: the new file.
        rule: which record stays if several snapshots have the same key.
        hasher: computes hash codes of keys, to check the key groups of the records that are read again; None does not
            check them.
        verify: read the new file again.
        batch: bytes of records that are read at once.
    """

    operator: str
    subtask: int
    header: KeyedHeader
    key_groups: KeyGroupRange
    sources: tuple[tuple[Spill, ...], ...]
    context: RecordContext
    target: Location
    rule: MergeRule = MergeRule.ERROR
    hasher: KeyHasher | None = None
    verify: bool = True
    batch: int = BATCH

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads; see `Work`. Snapshots are merged in Python: one at a time."""
        return count_threads(self.hasher) if len(self.sources) == 1 else 1

    def run(self) -> WrittenFile:
        """Write the file, and read it again if `verify` is set; a file that a failed attempt has left is replaced.

        A key group larger than `batch` is held in memory as a whole only if snapshots are merged.

        Raises:
            ProofError: the records read back are not the spilled ones, or a key is in another key group than its hash
                gives.
            IncompatibleError: several snapshots have the same key, and the rule is `ERROR`.
            StateError: a spill cannot be read.
        """
        with at(operator=self.operator):
            duplicates: list[Digests] = []
            with open_spills(self.sources, self.key_groups) as found:
                ranges = [each for _, each in found]
                names = {number: info.name for number, info in enumerate(self.header.states)}
                expected = sum_runs([each.runs for each in ranges], names)
                with create_file(self.target, replace=True) as output:
                    writer = CanonicalWriter(output, self.header, self.key_groups, self.context.prefix)
                    for key_groups, is_large in cut_windows(ranges, self.batch):
                        if is_large and len(self.sources) == 1:
                            runs = stream_runs(ranges, key_groups.start, self.batch)
                            writer.write_section(key_groups.start, frame_section(_list_blocks(runs)))
                        else:
                            blocks = [(source, each.read(key_groups)) for source, each in found]
                            duplicates.append(_write_blocks(writer, blocks, self.rule, self.context))
            return _finish(self, writer, expected, {}, sum_digests(duplicates))


@dataclass(frozen=True)
class InputFiles:
    """Input of a `Collect` from one snapshot.

    Attributes:
        files: the old files, from which the task reads only the key groups of the new subtask.
        states: for each file: (old state id, new state id) of the states that stay.
        key_filter: selects the keys that stay; None keeps all.
        directory: directory of the snapshot, to find out whether the files are remote; None if they are local.
    """

    files: tuple[KeyedFile, ...]
    states: tuple[StatePairs, ...]
    key_filter: KeyFilter | None = None
    directory: Location | None = None


@dataclass(frozen=True)
class Collect:
    """Task that writes the file of one new subtask from old files, if the max parallelism stays.

    Attributes:
        operator: label of the operator, for errors.
        subtask: index of the new subtask.
        header: header of the new file.
        key_groups: key groups of the new subtask.
        inputs: old files of each snapshot that is merged, in order.
        context: record context of the new operator.
        target: the new file.
        rule: which record stays if several snapshots have the same key.
        verify: read the old files a second time and the new file back, and compare.
        batch: bytes of records that are sorted and written at once.
        size: approximate bytes of the old files that the task reads.
        in_flight: see `Work`.
    """

    operator: str
    subtask: int
    header: KeyedHeader
    key_groups: KeyGroupRange
    inputs: tuple[InputFiles, ...]
    context: RecordContext
    target: Location
    rule: MergeRule = MergeRule.ERROR
    verify: bool = True
    batch: int = BATCH
    size: int = 0
    in_flight: int = 1

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads; see `Work`. Snapshots are merged in Python: one at a time."""
        return count_threads(None, self.inputs[0].files) if len(self.inputs) == 1 else 1

    def run(self) -> WrittenFile:
        """Write the file, and read it again if `verify` is set; a file that a failed attempt has left is replaced.

        Raises:
            ProofError: the records read back are not those of the old files.
            IncompatibleError: several snapshots have the same key, and the rule is `ERROR`.
            UsageError: a snapshot has another max parallelism, or `states` pairs states of different names.
            StateError: an old file cannot be read.
        """
        with at(operator=self.operator):
            self._require_fit()
            progress = _Progress(self)
            with create_file(self.target, replace=True) as output:
                progress.open(output)
                streams = [
                    stream
                    for number, given in enumerate(self.inputs)
                    for stream in begin_together(
                        [
                            _read_groups(number, file, pairs, self.key_groups)
                            for file, pairs in zip(given.files, given.states, strict=True)
                        ],
                        given.directory,
                    )
                ]
                for key_group, number, pairs, infos, runs in merge(*streams, key=lambda each: each[:2]):
                    progress.reach(key_group)
                    for old, records in runs:
                        if old in pairs:
                            progress.take(number, pairs[old], records, timers=is_timer(infos[old]))
                progress.reach(self.key_groups.end + 1, full=True)
            expected = sum_digests(progress.expected)
            if self.verify:
                self._check(sum_digests([expected, progress.dropped]))
            return _finish(self, progress.writer, expected, progress.dropped, sum_digests(progress.duplicates))

    def _require_fit(self) -> None:
        for given in self.inputs:
            for file, pairs in zip(given.files, given.states, strict=True):
                if file.context.max_parallelism != self.context.max_parallelism:
                    raise UsageError(
                        "the snapshot has another max parallelism: its records must be sorted by new key group first"
                    )
                for old, new in pairs:
                    name = file.header.states[old].name
                    if self.header.states[new].name != name:
                        raise UsageError(
                            f"the id {new} of the state {name} is that of another state in the new header",
                            where=Where(state=name),
                        )

    def _check(self, taken: Digests) -> None:
        """Read the old files a second time, with other code, and compare the digests with those of the first reading.

        The first reading cannot notice records that it has missed, since its own digests lack them, too.

        Args:
            taken: digests of the first reading, by state.

        Raises:
            ProofError: the digests differ.
        """
        there: list[Digests] = []
        for given in self.inputs:

            def scan(wanted: tuple[KeyedFile, StatePairs]) -> Iterator[tuple[int, KeyedRecords]]:
                file, pairs = wanted
                return file.scan([old for old, _ in pairs], self.key_groups.intersect(file.key_groups))

            files = zip(given.files, given.states, strict=True)
            for (file, _), found in scan_ahead(files, scan, given.directory, self.size // max(1, len(given.files))):
                there.extend(
                    {file.header.states[old].name: digest_run(records, is_map=_is_map(file.header, old))}
                    for old, records in found
                )
        whole = sum_digests(there)
        if wrong := [name for name in taken if whole.get(name, RecordDigest()) != taken[name]]:
            raise ProofError(
                f"subtask {self.subtask}: a second reading of {', '.join(sorted(wrong))} found other records than the "
                "first",
                hint="Nothing was published; please report this",
            )


class _Progress:
    """Buffers, writer and digests of a running `Collect`."""

    def __init__(self, task: Collect) -> None:
        self.task = task
        self.names = {number: info.name for number, info in enumerate(task.header.states)}
        maps = frozenset(number for number in range(len(self.names)) if _is_map(task.header, number))
        self.buffers = [RecordBuffer(task.context.prefix, maps, task.batch) for _ in task.inputs]
        self.first = self.reached = task.key_groups.start
        self.dropped: Digests = {name: RecordDigest() for name in self.names.values()}
        self.expected: list[Digests] = []
        self.duplicates: list[Digests] = []

    def open(self, output: IO[bytes]) -> None:
        """Begin the new file with its header."""
        self.writer = CanonicalWriter(output, self.task.header, self.task.key_groups, self.task.context.prefix)

    def take(self, source: int, state: int, records: KeyedRecords, *, timers: bool) -> None:
        """Buffer the records whose keys the filter keeps; count the others as dropped.

        Args:
            source: index of the snapshot.
            state: new state id.
            records: records of the state.
            timers: the records are timers.
        """
        key_filter = self.task.inputs[source].key_filter
        if key_filter is not None:
            kept = key_filter.select(records, timers=timers)
            is_map = _is_map(self.task.header, state)
            self.dropped[self.names[state]] += _digest_rest(records, kept, is_map=is_map)
            records = records.select(np.flatnonzero(kept))
        self.buffers[source].add(state, records)

    def reach(self, key_group: int, *, full: bool = False) -> None:
        """Note that records of `key_group` come next, and write the buffered key groups before it if a buffer is full.

        Args:
            key_group: the next key group, or the one after the last at the end of the file.
            full: write the buffered key groups even if no buffer is full.
        """
        full = full or any(buffer.is_full for buffer in self.buffers)
        # If the key group has not changed, write nothing yet: another snapshot may still have records of it.
        if key_group == self.reached or not full:
            self.reached = key_group
            return
        self.reached = key_group
        key_groups = KeyGroupRange(self.first, key_group - self.first)
        blocks = [(number, buffer.sort(key_groups)) for number, buffer in enumerate(self.buffers)]
        self.expected.append(sum_runs([block.runs for _, block in blocks], self.names))
        self.duplicates.append(_write_blocks(self.writer, blocks, self.task.rule, self.task.context))
        self.first = key_group


def _read_groups(
    source: int, file: KeyedFile, pairs: StatePairs, key_groups: KeyGroupRange
) -> Iterator[tuple[int, int, dict[int, int], tuple[StateMetaInfo, ...], Runs]]:
    wanted = dict(pairs)
    for key_group, runs in align_key_groups(file, key_groups.intersect(file.key_groups)):
        yield key_group, source, wanted, file.header.states, runs


def _list_blocks(runs: Iterable[tuple[Index, Iterator[bytes]]]) -> Iterator[tuple[int, bytes, int]]:
    """Yield the records of one key group for `frame_section`: (state id, block of bytes, offset of the last record).

    The offset counts from the start of the block; it is outside the block if the last record is in another one.
    """
    for run, blocks in runs:
        state, last = int(run["state"][0]), int(run["last"][0])
        for block in blocks:
            yield state, block, last
            last -= len(block)


def _write_blocks(
    writer: CanonicalWriter, blocks: Sequence[tuple[int, Block]], rule: MergeRule, context: RecordContext
) -> Digests:
    """Merge the records that several snapshots have under one key, and write the sections of the key groups.

    Args:
        writer: writer of the new file.
        blocks: (index of the snapshot, its sorted records).
        rule: which record stays if several snapshots have the same key.
        context: record context of the new operator.

    Returns:
        Digests of the duplicates that were left out, by state.
    """
    runs, duplicates = merge_duplicates(gather_runs(blocks), rule, writer.header, context)
    writer.write_sections(*join_runs(runs))
    return duplicates


def _finish(
    task: Gather | Collect, writer: CanonicalWriter, expected: Digests, dropped: Digests, duplicates: Digests
) -> WrittenFile:
    """Describe the written file; if the task verifies, read the file again first.

    Args:
        task: the task that wrote the file.
        writer: the writer, after the last section.
        expected: digests by state of the records given to the task, still with the duplicates.
        dropped: digests of the records that a key filter has left out.
        duplicates: digests of the records that merging has left out.

    Raises:
        ProofError: the digests of the file are not the expected ones without the duplicates.
    """
    states = {name: digest - duplicates.get(name, RecordDigest()) for name, digest in expected.items()}
    counts = tuple((number, states[info.name].records) for number, info in enumerate(task.header.states))
    written = WrittenFile(task.subtask, writer.offsets, writer.size, counts, states, dropped, duplicates)
    if task.verify and (
        wrong := [name for name, digest in _read_again(task, written).items() if digest != states[name]]
    ):
        raise ProofError(
            f"subtask {task.subtask}: the new file has other records of {', '.join(sorted(wrong))} than expected",
            hint="Nothing was published; please report this",
        )
    return written


def _read_again(task: Gather | Collect, written: WrittenFile) -> Digests:
    hasher = task.hasher if isinstance(task, Gather) else None
    stream = StateStream(str(task.target), written.size, location=task.target)
    file = open_canonical(stream, task.key_groups, written.offsets, task.context)
    totals = {info.name: RecordDigest() for info in task.header.states}
    for state, records in file.scan(range(len(task.header.states)), task.key_groups):
        info = file.header.states[state]
        totals[info.name] += digest_run(records, is_map=_is_map(file.header, state))
        if hasher is not None:
            hashes = hash_keys(hasher, records, timers=is_timer(info))
            require_key_groups(task.operator, file, state, records, hashes)
    return totals


def _digest_rest(records: KeyedRecords, kept: npt.NDArray[np.bool_], *, is_map: bool) -> RecordDigest:
    rest = np.flatnonzero(~kept)
    return digest_run(records.select(rest), is_map=is_map) if len(rest) else RecordDigest()


def _is_map(header: KeyedHeader, state: int) -> bool:
    return header.states[state].state_type == StateKind.MAP


KeyedHandles = tuple["KeyedStateHandle | None", "KeyedStateHandle | None"]
"""Managed and raw keyed state of a subtask."""


class Way(Enum):
    """The way in which state of an operator gets into the new snapshot; reports show the values."""

    NONE = "none"
    """The operator has no such state."""
    FINISHED = "finished, no state"
    """All subtasks of the operator had finished."""
    COPIED = "as it is"
    RANGES = "ranges of bytes"
    """New subtasks reuse ranges of the old files, or get copies of them."""
    RECORDS = "records"
    """Records are read from the old files and written to new ones."""


@dataclass(frozen=True)
class OperatorChange:
    """Change of an operator, for reports.

    Attributes:
        former: label of the old operator.
        label: label of the new operator.
        parallelism: (old, new).
        max_parallelism: (old, new).
        keyed: how its keyed state gets into the new snapshot.
        operator_state: how its operator state gets into the new snapshot.
        reason: why keyed state must be moved record by record; empty if it is not.
        hashes: texts that say which `hashCode` was found for user classes in the keys, and what proves it.
        moved: key groups that change subtask; None without keyed state, or if the max parallelism changes.
    """

    former: str
    label: str
    parallelism: tuple[int, int]
    max_parallelism: tuple[int, int]
    keyed: Way
    operator_state: Way
    reason: str = ""
    hashes: tuple[str, ...] = ()
    moved: MovedKeyGroups | None = None

    @property
    def keyed_text(self) -> str:
        """Text for reports: how keyed state gets into the new snapshot and, if its records are moved, why."""
        return f"{self.keyed.value} ({self.reason})" if self.reason else self.keyed.value


@dataclass(frozen=True)
class RecordsPlan:
    """Tasks that move the keyed records of one operator: `collects`, or `shuffles` and then `Gather` tasks.

    Both are empty if there are no keys.

    Attributes:
        header: header of the new files.
        context: record context of the new operator.
        shuffles: for each snapshot, its `Shuffle` tasks; empty if the max parallelism stays.
        collects: the tasks if the max parallelism stays.
        hasher: see `Shuffle`.
    """

    header: KeyedHeader
    context: RecordContext
    shuffles: tuple[tuple[Shuffle, ...], ...] = ()
    collects: tuple[Collect, ...] = ()
    hasher: KeyHasher | None = None


@dataclass(frozen=True)
class OperatorTasks:
    """Plan of one operator: its new metadata, and the tasks that write its new files.

    Attributes:
        edited: the operator before the change, with its request.
        change: description of the change, for reports.
        state: new metadata of the operator. If records are moved, handles of keyed state are still missing.
        assemblies: tasks that copy ranges of old files into new files.
        records: tasks that move keyed records; None if keyed state is reused as bytes.
        dropped: names of states that are removed.
        notes: remarks for the user.
    """

    edited: EditedOperator
    change: OperatorChange
    state: OperatorState
    assemblies: tuple[FileAssembly, ...] = ()
    records: RecordsPlan | None = None
    dropped: frozenset[str] = frozenset()
    notes: tuple[str, ...] = field(default=())

    def gather(
        self, target: Location, spills: Sequence[Sequence[Spill]], request: RescaleRequest, *, verify: bool
    ) -> list[Gather]:
        """Make the `Gather` tasks, which write the new files from the spills: one task for each new subtask.

        Args:
            target: directory of the new snapshot.
            spills: for each snapshot, the spills of its `Shuffle` tasks.
            request: the request for all operators.
            verify: read every new file again.
        """
        assert self.records is not None
        batch = choose_batch(sum(len(spill.blocks) for source in spills for spill in source))
        return [
            Gather(
                operator=self.change.label,
                subtask=subtask,
                header=self.records.header,
                key_groups=compute_key_group_range(subtask, self.state.parallelism, self.state.max_parallelism),
                sources=tuple(map(tuple, spills)),
                context=self.records.context,
                target=join(target, make_file_name()),
                rule=request.merge.on_equal,
                hasher=self.records.hasher,
                verify=verify,
                batch=batch,
            )
            for subtask in range(self.state.parallelism)
        ]


@dataclass(frozen=True)
class RescalePlan:
    """Plan of a rescaling.

    Attributes:
        edited: the old snapshot with the operators of the new one.
        request: the request of the user.
        target: directory of the new snapshot.
        operators: plans of the operators, one for each operator of the new snapshot.
        files: copy, link or reference files that stay as they are.
        verify: read all copied state again and compare.
        notes: remarks for the user.
    """

    edited: EditedSnapshot
    request: RescaleRequest
    target: Location
    operators: tuple[OperatorTasks, ...]
    files: FileMode
    verify: bool
    notes: tuple[str, ...]

    @property
    def changes(self) -> tuple[OperatorChange, ...]:
        """Changes of the operators, one for each operator of the new snapshot."""
        return tuple(plan.change for plan in self.operators)

    @property
    def dropped(self) -> tuple[str, ...]:
        """Labels of the old operators that the new snapshot does not have."""
        return self.edited.dropped

    @property
    def size(self) -> int:
        """Bytes of the old state."""
        return self.edited.snapshot.file_size

    def to_json(self) -> dict[str, object]:
        """Return the value for `json.dumps`."""
        return {
            "path": None,
            "operators": [_change_to_json(change) for change in self.changes],
            "dropped": list(self.dropped),
            "notes": list(self.notes),
        }


def _change_to_json(change: OperatorChange) -> dict[str, object]:
    return {
        "operator": change.label,
        "former": change.former,
        "parallelism": list(change.parallelism),
        "max_parallelism": list(change.max_parallelism),
        "keyed_state": change.keyed_text,
        "operator_state": change.operator_state.value,
        "hashes": list(change.hashes),
        "moved": None if change.moved is None else change.moved.to_json(),
    }


SPLIT_SIZE = 128 << 20
"""Bytes of an old file that one `Shuffle` reads, unless there would be more than `MOST_TASKS` tasks."""

MOST_TASKS = 4096
"""Approximate maximum of `Shuffle` tasks of an operator; with more state, each task reads more than `SPLIT_SIZE`.

Every new subtask reads from the spill of every task.
"""

MOST_BLOCKS = 4096
"""If the spills of an operator would have more blocks than this, about, the blocks of each spill are merged into one.

Merging is a second pass over the records. With fewer blocks it costs more than the reads that it saves.
"""


@dataclass(frozen=True, kw_only=True)
class RecordMove:
    """Planner of the tasks that move the keyed records of one operator.

    Attributes:
        sources: the operator in the main snapshot, then in the merged snapshots that have it.
        own: the request for this operator.
        request: the request for all operators.
        target: directory of the new snapshot.
        parallelism: parallelism of the new operator.
        max_parallelism: max parallelism of the new operator.
        verify: read new files again.
    """

    sources: tuple[Operator, ...]
    own: OperatorRequest
    request: RescaleRequest
    target: Location
    parallelism: int
    max_parallelism: int
    verify: bool

    def plan(self, reason: str) -> tuple[RecordsPlan, tuple[str, ...]]:
        """Plan the tasks that move the keyed records of the operator.

        Args:
            reason: why records must move, for errors.

        Returns:
            (the tasks; for user classes in the keys, texts that say which `hashCode` was found and what proves it).

        Raises:
            UnsupportedError: raw keyed state would have to move, or the hash of a class in the keys is not known.
            UsageError: the chosen keys are not of the type of the keys.
        """
        keyed = [operator for operator in self.sources if has_keyed_state(operator)]
        for operator in keyed:
            unread = operator.files.find_unread()
            for each in unread.values():
                raise UnsupportedError(
                    f"its records must move ({reason}), but its raw keyed state cannot: {each.reason}",
                    hint="Leave its max parallelism, its states and its keys as they are; with a RocksDB or changelog "
                    "snapshot convert it to canonical before",
                )
            for _, file in operator.keyed_files:
                for info in file.header.states:
                    if info.backend_type not in (BackendStateType.KEY_VALUE, BackendStateType.PRIORITY_QUEUE):
                        raise UnsupportedError(
                            f"records of {info.backend_type} state cannot be moved to other files",
                            where=Where(state=info.name),
                        )
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
                    self._key_filter,
                    operator.snapshot.location.directory,
                )
                for operator, files in zip(keyed, sources, strict=True)
            )
            return RecordsPlan(header, context, collects=tuple(self._collect(header, context, collected))), ()
        hasher: KeyHasher | None = None
        hashes: tuple[str, ...] = ()
        if any(operator.max_parallelism % self.max_parallelism for operator in keyed):
            hasher, hashes = find_key_hasher(keyed, header.key_serializer, self.own.key_hash)
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
                rule=self.request.merge.on_equal,
                verify=self.verify,
                size=size,
                in_flight=1 + count_scans_ahead(size) if is_remote else 1,
            )

    def _shuffle(
        self, operator: Operator, files: Sequence[tuple[KeyedFile, StatePairs]], hasher: KeyHasher | None, size: int
    ) -> Iterator[Shuffle]:
        """Make the `Shuffle` tasks, which sort the old records into spills, for one snapshot.

        Args:
            operator: the operator in this snapshot.
            files: its files of keyed state, each with the pairs of state ids (`Shuffle.states`).
            hasher: see `Shuffle`.
            size: bytes of keyed state of the operator in all snapshots.
        """
        split_size, merges = max(SPLIT_SIZE, size // MOST_TASKS), size // BLOCK > MOST_BLOCKS
        in_flight = count_scans(operator) if hasher is None or hasher.has_kernel else 1
        for file, pairs in files:
            for split in file.split(split_size):
                yield Shuffle(
                    operator=operator.label,
                    source=split,
                    states=pairs,
                    max_parallelism=self.max_parallelism,
                    target=join(self.target, make_file_name()),
                    hasher=hasher,
                    key_filter=self._key_filter,
                    merges=merges,
                    in_flight=in_flight,
                )


def has_keyed_state(operator: Operator) -> bool:
    """Return whether an operator has keyed state, managed or raw."""
    return any(each.managed_keyed_state or each.raw_keyed_state for each in operator.metadata.subtasks)


@dataclass
class MovedRecords:
    """Result of moving the keyed records of one operator.

    Attributes:
        files: the tasks, each with the file that it wrote.
        dropped: digests of the records that were left out, by a key filter or as duplicates: a mapping by state for
            each task, to be added up.
        found: digests by state of all records that `Shuffle` tasks read; empty if no digests were requested.
    """

    files: list[tuple[Gather | Collect, WrittenFile]]
    dropped: list[Mapping[str, RecordDigest]]
    found: Mapping[str, RecordDigest] = field(default_factory=dict)


def move_records(
    plan: RescalePlan, target: Location, scratch: Location, run: Runner, *, digests: bool = False
) -> list[MovedRecords]:
    """Move the keyed records of all operators whose plan says so: run their tasks, stage by stage.

    Args:
        plan: the plan of the rescaling.
        target: directory of the new files.
        scratch: directory of the spills; all tasks must reach it.
        run: runs the tasks.
        digests: compute digests of all records that are sorted, for the proof.

    Returns:
        One result for each operator of the plan; empty if its records do not move.
    """
    shuffles = [
        (number, source, replace(task, target=join(scratch, task.target.name), digests=digests))
        for number, each in enumerate(plan.operators)
        if each.records is not None
        for source, tasks in enumerate(each.records.shuffles)
        for task in tasks
    ]
    spilled = run([task for *_, task in shuffles], "records cannot be sorted for their new key groups")
    spills: dict[int, dict[int, list[Any]]] = {}
    for (number, source, _), spill in zip(shuffles, spilled, strict=True):
        spills.setdefault(number, {}).setdefault(source, []).append(spill)
    writing: list[tuple[int, Gather | Collect]] = []
    for number, each in enumerate(plan.operators):
        if each.records is None:
            continue
        if each.records.collects:
            writing += [(number, task) for task in each.records.collects]
        else:
            found = [spills.get(number, {}).get(source, []) for source in range(len(each.records.shuffles))]
            writing += [(number, task) for task in each.gather(target, found, plan.request, verify=plan.verify)]
    results = run([task for _, task in writing], "keyed state cannot be written")
    moved = [
        MovedRecords(
            files=[],
            dropped=[each.dropped for found in spills.get(number, {}).values() for each in found],
            found=sum_digests(each.found for found in spills.get(number, {}).values() for each in found),
        )
        for number, _ in enumerate(plan.operators)
    ]
    for (number, task), file in zip(writing, results, strict=True):
        moved[number].files.append((task, file))
        moved[number].dropped += [file.dropped, file.duplicates]
    return moved


def check_chosen_keys(plan: RescalePlan, moved: Sequence[MovedRecords]) -> None:
    """Check that the state has some of the keys that the request keeps or drops.

    Args:
        plan: the plan of the rescaling.
        moved: results of `move_records`.

    Raises:
        NotFoundError: an operator has none of the chosen keys.
    """
    for each, own in zip(plan.operators, moved, strict=True):
        choice = each.edited.request.keys
        if choice is None:
            continue
        left = sum(number for _, file in own.files for _, number in file.records)
        gone = sum(digest.records for found in own.dropped for digest in found.values())
        if (gone and not left) if choice.keep else (left and not gone):
            raise NotFoundError(
                "the operator has none of the chosen keys",
                where=Where(operator=each.change.label),
                hint="Keys are written as `dump` and `read` show them",
            )
