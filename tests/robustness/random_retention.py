"""Retention on random trees: nothing is lost that a kept, pinned or restored snapshot needs.

python -m tests.robustness.random_retention

The trees have jobs with claims and native savepoints, paths in all spellings, directories in each other, symbolic links
among roots and files, pins at, above and below the roots, and orphans. On each some plans are applied, deleting or with
the quarantine, and some snapshots are restored. What each snapshot needs is known from how the tree was made: the judge
opens these paths, and reads neither `_metadata` nor a plan.
"""

from __future__ import annotations

import argparse
import random
import sys
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from os import utime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml

from state_pipelines import open_snapshot
from state_pipelines.errors import IncompatibleError, NotFoundError, UsageError
from state_pipelines.metadata import list_references, read_metadata, replace_stream_handles, write_metadata
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import StreamRole
from state_pipelines.operations.auditing import Depth, Severity, audit_snapshot
from state_pipelines.operations.retention import (
    ApplyLimits,
    DeletionOutcome,
    apply_plan,
    open_audit_log,
    plan_retention,
    restore_quarantined,
)
from state_pipelines.storage import PathMapping, resolve
from tests.operations.retention.trees import INCREMENTAL
from tests.robustness.__main__ import write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.metadata import CheckpointMetadata, StreamReference
    from state_pipelines.metadata.handles import StreamStateHandle

NOW = datetime.now(UTC)
FAST = ApplyLimits(paths_per_second=1e9)
ACTIONS = 4


@dataclass
class Made:
    """A snapshot of a tree.

    Attributes:
        path: its directory, without links.
        job: directory of its job, or of the savepoints.
        files: every file that it needs, as its `_metadata` names it, and the content.
    """

    path: Path
    job: Path
    files: dict[Path, bytes] = field(default_factory=dict)

    @property
    def metadata(self) -> Path:
        """Its `_metadata`."""
        return self.path / "_metadata"

    def find_missing(self) -> list[str]:
        """The files that are not there with their content; links are followed."""
        missing = []
        for path, content in self.files.items():
            try:
                whole = path.read_bytes() == content
            except OSError:
                whole = False
            if not whole:
                missing.append(str(path))
        return missing


@dataclass
class Tally:
    """Outcome of the trees.

    Attributes:
        actions: number of actions by how they ended.
        deleted: number of paths that were deleted or moved.
        findings: what must not be, each with the seed of the tree.
    """

    actions: Counter[str] = field(default_factory=Counter)
    deleted: int = 0
    findings: list[str] = field(default_factory=list)


@cache
def _read_base() -> tuple[CheckpointMetadata, dict[str, bytes]]:
    """The metadata of one operator of a checkpoint with shared files, and the contents of its files by name."""
    whole = read_metadata((INCREMENTAL / "chk-3" / "_metadata").read_bytes())
    small = min(
        (each for each in whole.operator_states if _has_shared(replace(whole, operator_states=(each,)))),
        key=lambda each: len(list_references(replace(whole, operator_states=(each,)))),
    )
    contents = {path.name: path.read_bytes() for path in INCREMENTAL.rglob("*") if path.is_file()}
    return replace(whole, operator_states=(small,)), contents


def _has_shared(metadata: CheckpointMetadata) -> bool:
    return any(each.role is StreamRole.SHARED for each in list_references(metadata))


class RandomTree:
    """A tree below a directory, and what is known of it.

    Args:
        base: an empty directory.
        seed: of everything that is chosen.
    """

    def __init__(self, base: Path, seed: int) -> None:
        self.choice = random.Random(seed)
        self.base = base
        self.top = base / "all"
        self.team = self.top / "team"
        self.snapshots: list[Made] = []
        self.pinned: list[Made] = []
        self.jobs: list[Path] = []
        self.has_lost_pin = False
        self.team.mkdir(parents=True)
        (base / "alias").symlink_to(self.top)
        (base / "link").symlink_to(self.team)
        for number in range(self.choice.randint(2, 4)):
            self._add_job(number)
        self._add_savepoints()
        for _ in range(self.choice.randint(0, 4)):
            self._move_behind_link()
        self._add_orphans()
        self._add_pins()

    def _add_job(self, number: int) -> None:
        name = f"{self.choice.getrandbits(128):032x}" if self.choice.random() < 0.85 else f"job-{number}"
        # Mostly beside the others.
        job = self.choice.choice((self.team, self.team, self.team, self.top, self.top / "other")) / name
        old = self._find_newest(self.choice.choice(self.jobs)) if self.jobs and self.choice.random() < 0.6 else None
        shared: list[tuple[Path, bytes]] = []
        begin = self.choice.uniform(10, 60)
        for index in range(self.choice.randint(1, 4)):
            made = Made(job / f"chk-{index + 1}", job)
            self._write(made, begin - index, old if index < 2 else None, shared, index + 1)
        self.jobs.append(job)
        if old is not None and self.choice.random() < 0.4:
            # Flink removes what it has claimed, but for the files that are still needed.
            self._remove(old)

    def _find_newest(self, job: Path) -> Made | None:
        return next((each for each in reversed(self.snapshots) if each.job == job and each.metadata.exists()), None)

    def _remove(self, made: Made) -> None:
        made.metadata.unlink()
        self.snapshots.remove(made)

    def _add_savepoints(self) -> None:
        for _ in range(self.choice.randint(0, 2)):
            digits = f"{self.choice.getrandbits(72):018x}"
            directory = self.choice.choice((self.top, self.team)) / "savepoints"
            made = Made(directory / f"savepoint-{digits[:6]}-{digits[6:]}", directory)
            self._write(made, self.choice.uniform(5, 60), None, None, 7)

    def _write(
        self, made: Made, days: float, claimed: Made | None, shared: list[tuple[Path, bytes]] | None, number: int
    ) -> None:
        metadata, contents = _read_base()
        known = [] if claimed is None else [each for each in claimed.files.items() if each[0].parent.name == "shared"]
        # Contents are equal where names are.
        reusable = {content: path for path, content in [*known, *(shared or ())]}

        def move(reference: StreamReference) -> StreamStateHandle:
            handle = reference.handle
            if not isinstance(handle, FileStateHandle | RelativeFileStateHandle):
                return handle
            path = handle.path if isinstance(handle, FileStateHandle) else handle.relative_path
            content = contents[path.rpartition("/")[2]]
            if reference.role is StreamRole.SHARED and shared is not None:
                file = reusable.get(content)
                if file is None or self.choice.random() < 0.2:
                    file = self._put(made.job / "shared" / self._name(), content, days)
                shared.append((file, content))
            else:
                file = self._put(made.path / self._name(), content, days)
                if isinstance(handle, RelativeFileStateHandle):
                    made.files[file] = content
                    return replace(handle, relative_path=file.name)
            made.files[file] = content
            return FileStateHandle(self._spell(file), handle.size)

        moved = replace(replace_stream_handles(metadata, move), checkpoint_id=number)
        self._put(made.metadata, write_metadata(moved), days)
        self.snapshots.append(made)

    def _name(self) -> str:
        return str(uuid.UUID(int=self.choice.getrandbits(128)))

    def _spell(self, file: Path) -> str:
        """One of the spellings of a path."""
        text = str(file)
        if self.choice.random() < 0.3:
            text = text.replace(str(self.top), str(self.base / "alias"))
        if self.choice.random() < 0.2:
            text = text.replace("/shared/", "//shared/./")
        return self.choice.choice(("", "file:", "file://", "file:")) + text

    def _put(self, path: Path, content: bytes, days: float) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        time = (NOW - timedelta(days=days)).timestamp()
        for each in (path, path.parent):
            utime(each, (time, time))
        return path

    def _move_behind_link(self) -> None:
        """Put a link in the place of a file that snapshots need."""
        files = sorted({path for each in self.snapshots for path in each.files if not path.is_symlink()})
        if not files:
            return
        file = self.choice.choice(files)
        area = self.choice.choice(("shared", "taskowned", "chk-77"))
        directory = self.choice.choice((file.parent, self.choice.choice(self.jobs) / area, self.base / "disk"))
        target = directory / self._name()
        self._put(target, file.read_bytes(), self.choice.uniform(5, 60))
        file.unlink()
        if self.choice.random() < 0.5:
            file.symlink_to(target)
        else:
            text = "/".join([".."] * (len(file.parent.parts) - 1)) + str(target)
            file.symlink_to(text)

    def _add_orphans(self) -> None:
        for _ in range(self.choice.randint(2, 12)):
            area = self.choice.choice(("shared", "shared", "taskowned", "chk-55", "chk-66"))
            job = self.choice.choice(self.jobs)
            self._put(job / area / self._name(), b"orphan", self.choice.uniform(0, 60))

    def _add_pins(self) -> None:
        entries: dict[Path, list[str]] = {}
        for made in self.choice.sample(self.snapshots, min(len(self.snapshots), self.choice.randint(0, 2))):
            above = [each for each in made.path.parents if each == self.base or self.base in each.parents]
            root = self.choice.choice(above)
            relative = made.path.relative_to(root).as_posix()
            spellings = (
                *(relative, f"./{relative}", f" {relative}/", f"{relative}/_metadata", relative.replace("/", "//")),
                *(str(made.path), f"file:{made.path}", f"file://{made.path}/_metadata"),
            )
            entries.setdefault(root, []).append(self.choice.choice(spellings))
            self.pinned.append(made)
        if self.choice.random() < 0.08:
            self.has_lost_pin = True
            entries.setdefault(self.top, []).append("team/misspelled/chk-1")
        for root, paths in entries.items():
            (root / "_retention").mkdir(exist_ok=True)
            content = {"pins": [{"path": path, "reason": "needed"} for path in paths]}
            (root / "_retention" / "pins.yaml").write_text(yaml.safe_dump(content))

    def choose_roots(self) -> list[Path]:
        """Roots of a plan, by any of their names."""
        job = self.choice.choice(self.jobs)
        choices = [
            [self.top],
            [self.base / "alias"],
            [self.top / ".." / "all"],
            [self.team],
            [self.base / "link"],
            [self.team, self.top / "other"],
            [self.team, self.base / "alias"],
            *([job], [job], [job]),
            [job / "shared"],
        ]
        return [each for each in self.choice.choice(choices) if each.exists()] or [self.top]

    def is_visible(self, made: Made, roots: Iterable[Path]) -> bool:
        """Whether a plan of some roots knows a snapshot: it is below one, or of a job beside a root that is a job."""
        real = [root.resolve() for root in roots]
        beside = {root.parent for root in real if root in self.jobs}
        return (
            any(root in made.path.parents for root in real)
            or made.path.parent.parent in beside
            or (made.path.parent in beside)
        )


def judge(tree: RandomTree, before: dict[int, bool], roots: list[Path], what: str) -> list[str]:
    """What an action has lost.

    Args:
        tree: the tree.
        before: of each snapshot that was there, whether it was whole.
        roots: the roots of the action.
        what: the action, for the findings.
    """
    found = []
    real = [root.resolve() for root in roots]
    for index, made in enumerate(tree.snapshots):
        if not before.get(index) or not tree.is_visible(made, roots):
            continue
        is_inside = any(root in made.path.parents for root in real)
        if made.metadata.exists():
            found += [f"{what}: {made.path} needs {missing}" for missing in made.find_missing()]
        elif any(made is each for each in tree.pinned) or not is_inside:
            found.append(f"{what}: {made.path} is pinned or outside the roots, and has gone")
        elif tree.has_lost_pin:
            found.append(f"{what}: {made.path} has gone though a pin has no snapshot")
    for job in tree.jobs:
        mine = [(index, each) for index, each in enumerate(tree.snapshots) if each.job == job]
        was_whole = any(before.get(index) and tree.is_visible(each, roots) for index, each in mine)
        if was_whole and not any(each.metadata.exists() and not each.find_missing() for _, each in mine):
            found.append(f"{what}: nothing is left of {job}")
    return found


def run_tree(seed: int, tally: Tally, *, actions: int = ACTIONS) -> None:
    """Make a tree, apply plans and restore on it, and judge what is left after each action."""
    with TemporaryDirectory() as directory:
        tree = RandomTree(Path(directory).resolve(), seed)
        applied: list[tuple[list[Path], str]] = []
        for number in range(actions):
            before = {
                index: not each.find_missing() for index, each in enumerate(tree.snapshots) if each.metadata.exists()
            }
            if applied and tree.choice.random() < 0.35:
                roots, what = _restore(tree, applied, tally)
            else:
                roots, what = _apply(tree, applied, tally)
            lost = judge(tree, before, roots, f"seed {seed}, action {number}, {what}")
            tally.findings += lost
            if lost:
                return
        tally.findings += [f"seed {seed}: {each}" for each in _verify(tree)]


def _apply(tree: RandomTree, applied: list[tuple[list[Path], str]], tally: Tally) -> tuple[list[Path], str]:
    roots = tree.choose_roots()
    policy = tree.choice.choice(({"keep": "none"}, {"checkpoints": {"last": 1}}, {"keep": {"within": "20d"}}, {}))
    quarantine = tree.choice.random() < 0.6
    min_age = timedelta(days=tree.choice.choice((0, 3, 20)))
    names = list(map(str, roots))
    what = f"plan of {names} with {policy}, {min_age}, {'quarantine' if quarantine else 'deletion'}"
    is_inner = any(root.resolve().name == "shared" for root in roots)
    try:
        plan = plan_retention(names, policy, min_age=min_age)
    except UsageError:
        tally.actions["refused root" if is_inner else "refused"] += 1
        if not is_inner:
            tally.findings.append(f"{what} is refused")
        return roots, what
    if is_inner:
        tally.findings.append(f"{what} is not refused")
    if plan.stopped and not tree.has_lost_pin:
        tally.findings.append(f"{what} is stopped: {plan.stopped[0]}")
    try:
        result = apply_plan(
            names, policy, fingerprint=plan.fingerprint, min_age=min_age, quarantine=quarantine, limits=FAST
        )
    except IncompatibleError as error:
        tally.actions["refused application"] += 1
        if "is damaged" not in str(error):
            tally.findings.append(f"{what}: {error}")
        return roots, what
    tally.actions["quarantined" if quarantine else "deleted"] += 1
    tally.deleted += result.paths
    if quarantine and result.paths:
        applied.append((roots, plan.fingerprint))
    return roots, what


def _restore(tree: RandomTree, applied: list[tuple[list[Path], str]], tally: Tally) -> tuple[list[Path], str]:
    roots, fingerprint = tree.choice.choice(applied)
    gone = [each for each in tree.snapshots if not each.metadata.exists()]
    chosen = tree.choice.choice(gone) if gone and tree.choice.random() < 0.6 else None
    name = fingerprint
    if chosen is not None:
        spellings = [
            str(chosen.path),
            f"file:{chosen.path}",
            f"{chosen.metadata}",
            f"{chosen.path.parent}//chk/../{chosen.path.name}",
        ]
        name = tree.choice.choice(spellings).replace(
            str(tree.top), tree.choice.choice((str(tree.top), f"{tree.base}/alias"))
        )
    what = f"restore {name} of {list(map(str, roots))}"
    locations = [resolve(str(root.resolve())) for root in roots]
    try:
        # Links lead out of the roots.
        allowed = PathMapping().allow([str(tree.base)])
        records = restore_quarantined(locations, name, open_audit_log(locations[0]), path_mapping=allowed)
    except NotFoundError:
        tally.actions["nothing to restore"] += 1
        return roots, what
    outcomes = {each.path: each for each in records}
    complete = True
    for made in tree.snapshots:
        record = outcomes.get(str(made.metadata))
        if record is None or record.outcome is DeletionOutcome.FAILED:
            continue
        missing = made.find_missing()
        is_said = record.outcome is DeletionOutcome.INCOMPLETE
        complete &= not is_said
        if missing and not is_said:
            tally.findings.append(
                f"{what}: {made.path} lacks {missing}, and is called {record.outcome} {record.detail}"
            )
        if is_said and not missing:
            tally.findings.append(f"{what}: {made.path} is whole, and is called incomplete: {record.detail}")
    tally.actions["restored" if complete else "restored, incomplete"] += 1
    return roots, what


def _verify(tree: RandomTree) -> list[str]:
    """Snapshots that `verify --depth files` judges in another way than the judge."""
    found = []
    for made in tree.snapshots:
        if made.metadata.exists():
            report = audit_snapshot(open_snapshot(str(made.path), allow_roots=[str(tree.base)]), Depth.FILES)
            is_whole = not any(each.severity is Severity.ERROR for each in report.findings)
            if is_whole == bool(made.find_missing()):
                found.append(f"verify says of {made.path}: {[str(each) for each in report.findings]}")
    return found


def main() -> int:
    """Make and judge trees, and print what came of it; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.random_retention", description="Random trees.")
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the first tree, to repeat a finding")
    options = parser.parse_args()
    tally = Tally()
    for seed in range(options.first, options.first + options.trees):
        run_tree(seed, tally)
    for finding in tally.findings:
        write(f"  {finding}")
    write(f"{options.trees} trees, {dict(tally.actions)}, {tally.deleted:,} paths gone, {len(tally.findings)} findings")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
