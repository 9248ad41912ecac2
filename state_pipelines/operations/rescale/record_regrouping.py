"""Moving records to other key groups and files: bytes only, no value is decoded.

Under a new max parallelism any record can come to lie in any file. `Shuffle` sorts a part of an old file into a spill,
`Gather` writes the file of one new subtask from all spills. Where key groups stay, `Collect` writes that file from the
old ones at once. Each is a task that any thread or process can do, and that can be done again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import merge
from typing import IO, TYPE_CHECKING

import numpy as np

from state_pipelines.errors import ProofError, UsageError, Where, at
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
from state_pipelines.keyed.key_groups import assign_key_groups, key_group_prefix_size
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operations.rescale.hashed_keys import count_threads, hash_keys, require_key_groups
from state_pipelines.operations.rescale.snapshot_merge import MergeRule, StatePairs, is_timer, merge_duplicates
from state_pipelines.operations.write.keyed_rewrite import WrittenFile, align_key_groups
from state_pipelines.operations.write.spilled_blocks import Spill
from state_pipelines.operations.write.spills import (
    BATCH,
    BLOCK,
    create_merged_spill,
    create_spill,
    cut_windows,
    open_spills,
    stream_runs,
)
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.storage import Location, create_file
from state_pipelines.storage.reading import begin_together, scan_ahead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.keys import KeyFilter
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.operations.rescale.hashed_keys import KeyHasher
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

Digests = dict[str, RecordDigest]


@dataclass(frozen=True)
class Shuffle:
    """Part of an old file, sorted for new key groups; the first stage.

    Attributes:
        operator: label of the operator, for errors.
        source: the old file, or a part of it (`KeyedFile.split`).
        states: (old state id, new state id) of the states that stay.
        context: of the operator as it was.
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
    context: RecordContext
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
        """As `Work` says."""
        return count_threads(self.hasher, [self.source])

    def run(self) -> Spill:
        """Sort it.

        Raises:
            ProofError: by its hash a key belongs to another key group than the one in which it lies.
            UsageError: without hashes keys cannot come to other key groups.
            StateError: the old file cannot be read.
        """
        if self.hasher is None and self.context.max_parallelism % self.max_parallelism:
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
            for old, records in self.source.scan(list(pairs), self.context, wanted):
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
                elif self.max_parallelism != self.context.max_parallelism:
                    # A remainder of a remainder, since one number divides the other.
                    records = replace(records, key_groups=records.key_groups % np.int32(self.max_parallelism))
                spill.add(pairs[old], records)
        states = {infos[old].name: spill.states.get(new, RecordDigest()) for old, new in self.states}
        return Spill(self.target, self.max_parallelism, spill.blocks, states, dropped, found)

    def _hash(self, state: int, records: KeyedRecords, hasher: KeyHasher) -> npt.NDArray[np.int32]:
        """Hash codes that agree with the key groups in which the records lie."""
        header = self.source.header
        with at(state=header.states[state].name, file=records.file):
            hashes = hash_keys(hasher, records, timers=is_timer(header.states[state]))
        require_key_groups(self.operator, header, state, self.context, records, hashes)
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
        """As `Work` says; snapshots are merged by Python."""
        return count_threads(self.hasher) if len(self.sources) == 1 else 1

    def run(self) -> WrittenFile:
        """Write it, and read it again; what an attempt that died has left is replaced.

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
        context: of the operator in this snapshot.
        key_filter: which keys stay; None: all.
        directory: of the snapshot; None: its files are on this machine.
    """

    files: tuple[KeyedFile, ...]
    states: tuple[StatePairs, ...]
    context: RecordContext
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
        """As `Work` says; snapshots are merged by Python."""
        return count_threads(None, self.inputs[0].files) if len(self.inputs) == 1 else 1

    def run(self) -> WrittenFile:
        """Write it, and read it again; what an attempt that died has left is replaced.

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
                            _read_groups(number, file, pairs, given.context, self.key_groups)
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
            if given.context.max_parallelism != self.context.max_parallelism:
                raise UsageError("a snapshot of another max parallelism must be shuffled first")
            for file, pairs in zip(given.files, given.states, strict=True):
                for old, new in pairs:
                    name = file.header.states[old].name
                    if self.header.states[new].name != name:
                        raise UsageError(f"state {new} of the new header is not {name}", where=Where(state=name))

    def _check(self, taken: Digests) -> None:
        """Read the old files again, in another way: what the first reading lost was not in what it counted either."""
        there: list[Digests] = []
        for given in self.inputs:

            def scan(
                wanted: tuple[KeyedFile, StatePairs], context: RecordContext = given.context
            ) -> Iterator[tuple[int, KeyedRecords]]:
                file, pairs = wanted
                return file.scan([old for old, _ in pairs], context, self.key_groups.intersect(file.key_groups))

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
        """Write what lies before a key group, when that is enough or must be."""
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
    source: int, file: KeyedFile, pairs: StatePairs, context: RecordContext, key_groups: KeyGroupRange
) -> Iterator[tuple[int, int, dict[int, int], tuple[StateMetaInfo, ...], Runs]]:
    wanted = dict(pairs)
    for key_group, runs in align_key_groups(file, context, key_groups.intersect(file.key_groups)):
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
    """Write sections of some key groups; what was left out of each state because it came twice."""
    runs, duplicates = merge_duplicates(gather_runs(blocks), rule, writer.header, context)
    writer.write_sections(*join_runs(runs))
    return duplicates


def _finish(
    task: Gather | Collect, writer: CanonicalWriter, expected: Digests, dropped: Digests, duplicates: Digests
) -> WrittenFile:
    """Read what was written again, and tell about it.

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
    file = open_canonical(stream, task.key_groups, written.offsets)
    totals = {info.name: RecordDigest() for info in task.header.states}
    for state, records in file.scan(range(len(task.header.states)), task.context, task.key_groups):
        info = file.header.states[state]
        totals[info.name] += digest_run(records, is_map=_is_map(file.header, state))
        if hasher is not None:
            hashes = hash_keys(hasher, records, timers=is_timer(info))
            require_key_groups(task.operator, file.header, state, task.context, records, hashes)
    return totals


def _digest_rest(records: KeyedRecords, kept: npt.NDArray[np.bool_], *, is_map: bool) -> RecordDigest:
    rest = np.flatnonzero(~kept)
    return digest_run(records.select(rest), is_map=is_map) if len(rest) else RecordDigest()


def _is_map(header: KeyedHeader, state: int) -> bool:
    return header.states[state].state_type == StateKind.MAP
