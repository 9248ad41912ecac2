"""Records that move to other key groups and files, as bytes: the plan of an operator, its tasks and stages.

Moving records to other key groups and files: bytes only, no value is decoded. Under a new max parallelism any record
can come to lie in any file. `Shuffle` sorts a part of an old file into a spill, `Gather` writes the file of one new
subtask from all spills. Where key groups stay, `Collect` writes that file from the old ones at once. Each is a task
that any thread or process can do, and that can be done again.
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
    """Part of an old file, sorted for new key groups; the first stage.

    Attributes:
        operator: label of the operator, for errors.
        source: the old file, or a part of it (`KeyedFile.split`).
        states: (old state id, new state id) of the states that stay.
        max_parallelism: number of the new key groups.
        target: the spill; `move_records` replaces the planned directory by that of the temporary files.
        hasher: knows the hash codes; None: key groups stay, or the new number of them divides the old one.
        key_filter: which keys stay; None: all.
        key_groups: what is wanted of the source, under the old key groups; None: the range of its handle.
        digests: digest what is read, for a proof that then need not read the old file.
        merges: the spill becomes a single block, for there would be many in all.
        block: bytes of records that are sorted at once.
        batch: bytes of records that are joined at once when blocks become one.
        in_flight: as `Work` says.
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
        """Number of kernel threads; see `Work`."""
        return count_threads(self.hasher, [self.source])

    def run(self) -> Spill:
        """Sort it.

        Raises:
            ProofError: by its hash a key belongs to another key group than the one in which it lies.
            UsageError: without hashes keys cannot come to other key groups.
            StateError: the old file cannot be read.
        """
        if self.hasher is None and self.source.context.max_parallelism % self.max_parallelism:
            raise UsageError("without the hashes of the keys the new max parallelism must divide the old one")
        infos = self.source.header.states
        # A stream may hold more than its handle names.
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
        """Hash codes that agree with the key groups in which the records lie."""
        header = self.source.header
        with at(state=header.states[state].name, file=records.file):
            hashes = hash_keys(hasher, records, timers=is_timer(header.states[state]))
        require_key_groups(self.operator, self.source, state, records, hashes)
        return hashes


@dataclass(frozen=True)
class Gather:
    """The file of one new subtask from spills; the second stage.

    Attributes:
        operator: label of the operator, for errors.
        subtask: index of the subtask.
        header: of the new file.
        key_groups: range of the subtask.
        sources: the spills of each snapshot that is merged, in their order.
        context: of the operator as it will be.
        target: the new file.
        rule: what happens to keys that several snapshots have.
        hasher: knows the hash codes, for the proof; None: key groups have stayed.
        verify: read the new file again.
        batch: bytes of records that are joined at once.
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
        """Number of kernel threads; see `Work`. Python merges snapshots."""
        return count_threads(self.hasher) if len(self.sources) == 1 else 1

    def run(self) -> WrittenFile:
        """Write the file and read it again; leftovers of a failed attempt are replaced.

        A key group is held whole only when snapshots are merged.

        Raises:
            ProofError: what was written is not what was spilled, or a key lies where its hash does not put it.
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
        files: old files, each with the key groups of its own range.
        states: (old state id, new state id) of the states that stay; by file.
        key_filter: which keys stay; None: all.
        directory: of the snapshot; None: its files are on this machine.
    """

    files: tuple[KeyedFile, ...]
    states: tuple[StatePairs, ...]
    key_filter: KeyFilter | None = None
    directory: Location | None = None


@dataclass(frozen=True)
class Collect:
    """The file of one new subtask from old files, where key groups stay.

    Attributes:
        operator: label of the operator, for errors.
        subtask: index of the subtask.
        header: of the new file.
        key_groups: range of the subtask.
        inputs: the snapshots that are merged, in their order.
        context: of the operator as it will be.
        target: the new file.
        rule: what happens to keys that several snapshots have.
        verify: read the old files once more, and the new file again.
        batch: bytes of records that are joined at once.
        size: bytes of the old files that the task reads, about.
        in_flight: as `Work` says.
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
        """Number of kernel threads; see `Work`. Python merges snapshots."""
        return count_threads(None, self.inputs[0].files) if len(self.inputs) == 1 else 1

    def run(self) -> WrittenFile:
        """Write the file and read it again; leftovers of a failed attempt are replaced.

        Raises:
            ProofError: what was written is not what was there.
            IncompatibleError: several snapshots have the same key, and the rule is `ERROR`.
            UsageError: a snapshot has another max parallelism, or a state that the new header does not name so.
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
                    raise UsageError("a snapshot of another max parallelism must be shuffled first")
                for old, new in pairs:
                    name = file.header.states[old].name
                    if self.header.states[new].name != name:
                        raise UsageError(f"state {new} of the new header is not {name}", where=Where(state=name))

    def _check(self, taken: Digests) -> None:
        """Read the old files again by other code: the digests of the first reading lack the records that it missed."""
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
                f"subtask {self.subtask}: what was taken of {', '.join(sorted(wrong))} is not what was there",
                hint="Nothing was published; please report this",
            )


class _Progress:
    """State of a running `Collect`."""

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
        """Write the header."""
        self.writer = CanonicalWriter(output, self.task.header, self.task.key_groups, self.task.context.prefix)

    def take(self, source: int, state: int, records: KeyedRecords, *, timers: bool) -> None:
        """Keep what the filter leaves of the records of a new state."""
        key_filter = self.task.inputs[source].key_filter
        if key_filter is not None:
            kept = key_filter.select(records, timers=timers)
            is_map = _is_map(self.task.header, state)
            self.dropped[self.names[state]] += _digest_rest(records, kept, is_map=is_map)
            records = records.select(np.flatnonzero(kept))
        self.buffers[source].add(state, records)

    def reach(self, key_group: int, *, full: bool = False) -> None:
        """Write the buffered key groups before a key group, when they are large enough or the file ends."""
        full = full or any(buffer.is_full for buffer in self.buffers)
        # Another source may have records of the key group that was reached last.
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
    """The runs of one key group as `frame_section` takes them."""
    for run, blocks in runs:
        state, last = int(run["state"][0]), int(run["last"][0])
        for block in blocks:
            yield state, block, last
            last -= len(block)


def _write_blocks(
    writer: CanonicalWriter, blocks: Sequence[tuple[int, Block]], rule: MergeRule, context: RecordContext
) -> Digests:
    """Write sections of some key groups; return the duplicates that were left out, by state."""
    runs, duplicates = merge_duplicates(gather_runs(blocks), rule, writer.header, context)
    writer.write_sections(*join_runs(runs))
    return duplicates


def _finish(
    task: Gather | Collect, writer: CanonicalWriter, expected: Digests, dropped: Digests, duplicates: Digests
) -> WrittenFile:
    """Read the written file again, and describe it.

    Raises:
        ProofError: it is not what is expected, without the duplicates.
    """
    states = {name: digest - duplicates.get(name, RecordDigest()) for name, digest in expected.items()}
    counts = tuple((number, states[info.name].records) for number, info in enumerate(task.header.states))
    written = WrittenFile(task.subtask, writer.offsets, writer.size, counts, states, dropped, duplicates)
    if task.verify and (
        wrong := [name for name, digest in _read_again(task, written).items() if digest != states[name]]
    ):
        raise ProofError(
            f"subtask {task.subtask}: what was written of {', '.join(sorted(wrong))} is not what should be there",
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
    """The way that state of an operator gets into the new snapshot; the values are the words of reports."""

    NONE = "none"
    """There is no state."""
    FINISHED = "finished, no state"
    """The operator had finished."""
    COPIED = "as it is"
    RANGES = "ranges of bytes"
    """Subtasks take ranges of the old files."""
    RECORDS = "records"
    """Records are read and written."""


@dataclass(frozen=True)
class OperatorChange:
    """Change of an operator, for reports.

    Attributes:
        former: its label before.
        label: its label afterwards.
        parallelism: before and after.
        max_parallelism: before and after.
        keyed: how its keyed state gets there.
        operator_state: how its operator state gets there.
        reason: why the records of its keyed state are written again; empty where they are not.
        hashes: of user classes in the keys, which hash code was found and what proves it.
        moved: key groups that change subtask; None without keyed state, and where all records move to other key groups.
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
        """The way of keyed state, and why."""
        return f"{self.keyed.value} ({self.reason})" if self.reason else self.keyed.value


@dataclass(frozen=True)
class RecordsPlan:
    """Plan of the move of the records of one operator.

    Attributes:
        shuffles: by source, the tasks of the first stage; empty where key groups stay.
        header: of the new files.
        context: of the new key groups.
        collects: the tasks where key groups stay.
        hasher: where they do not.
    """

    header: KeyedHeader
    context: RecordContext
    shuffles: tuple[tuple[Shuffle, ...], ...] = ()
    collects: tuple[Collect, ...] = ()
    hasher: KeyHasher | None = None


@dataclass(frozen=True)
class OperatorTasks:
    """Tasks for one operator.

    Attributes:
        edited: the operator before.
        change: for people.
        state: its new metadata, in which keyed state that moves by records is still missing.
        assemblies: new files made of ranges of bytes.
        records: how records move; None when they do not.
        dropped: names of states that go.
        notes: what users should know.
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
        """The tasks of the second stage, from the spills of each source."""
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
        edited: the old state under the new operators.
        request: what was asked for.
        target: directory of the new snapshot.
        operators: one per operator of the new snapshot.
        files: what happens to files that stay as they are.
        verify: all copied state is read again and compared.
        notes: what users should know.
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
        """Change of each operator of the new snapshot."""
        return tuple(plan.change for plan in self.operators)

    @property
    def dropped(self) -> tuple[str, ...]:
        """Labels of the operators that go."""
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
        """The tasks of one source; `size` is bytes of the files of all sources."""
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
    """Records of an operator that were written.

    Attributes:
        files: the tasks, each with the file that it wrote.
        dropped: what was left out, by state.
        found: all that was read to be sorted, by state; empty unless `digests` is set.
    """

    files: list[tuple[Gather | Collect, WrittenFile]]
    dropped: list[Mapping[str, RecordDigest]]
    found: Mapping[str, RecordDigest] = field(default_factory=dict)


def move_records(
    plan: RescalePlan, target: Location, scratch: Location, run: Runner, *, digests: bool = False
) -> list[MovedRecords]:
    """Sort the records into their new key groups and write them; returns the files of each operator of the plan.

    Args:
        plan: the plan.
        target: directory of the new files.
        scratch: directory of the spills, which every task reaches.
        run: runs the tasks.
        digests: digest what is sorted, for the proof.
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
    """Refuse a choice of keys if the state has none of them."""
    for each, own in zip(plan.operators, moved, strict=True):
        choice = each.edited.request.keys
        if choice is None:
            continue
        left = sum(number for _, file in own.files for _, number in file.records)
        gone = sum(digest.records for found in own.dropped for digest in found.values())
        if (gone and not left) if choice.keep else (left and not gone):
            raise NotFoundError(
                "none of the chosen keys is there",
                where=Where(operator=each.change.label),
                hint="Keys are written as `dump` and `read` show them",
            )
