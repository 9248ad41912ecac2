"""Drives the real Flink: installs it, runs a job on a mini cluster, takes snapshots of every format and restores them.

Flink comes from the package index (`apache-flink-libraries` carries `flink-dist`), once per version, into an ignored
folder of the tree. The Java programs beside this module (`java/harness`) do the work.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from state_pipelines.flink.local_cluster import (
    OPENED_PACKAGES,
    download_jars,
    explain_missing_jdk,
    find_tool,
    install_jars,
    locked,
)
from tests.flink.jobs import orders_job
from tests.flink.workers import TIMEOUT_SECONDS, WORKERS, write_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from tests.flink.jobs import Job

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "flink"
HERE = Path(__file__).resolve().parent
ORDERS = ROOT / "examples" / "orders"

VERSIONS = ("1.20.5", "2.2.1", "2.3.0")
OLDEST_JDK = 17
REFUSED = 2
# Fields of a dump line that differ from run to run.
VOLATILE = ("subtask", "index", "ttl_ts")
ENTRY_KINDS = ("keyed", "timer", "operator", "broadcast")

Entry = dict[str, Any]


class HarnessError(RuntimeError):
    """Flink cannot be installed, compiled against or run; says why."""


@dataclass(frozen=True)
class FlinkHome:
    """An installed Flink.

    Attributes:
        version: such as `2.2.1`.
        path: its folder below the cache.
        libraries: jars besides those that every job needs.
    """

    version: str
    path: Path
    libraries: tuple[Path, ...] = ()

    @property
    def major(self) -> str:
        """Major release, such as `2`: its minor releases share the sources of the jobs."""
        return self.version.split(".")[0]

    @property
    def jars(self) -> list[Path]:
        """Its class path."""
        return [*sorted((self.path / "lib").glob("*.jar")), *self.libraries]


@dataclass(frozen=True)
class RestoreResult:
    """What came of a restore.

    Attributes:
        ok: Flink took the snapshot.
        error: the chain of causes, one per line, when it did not.
        entries: every entry that the restored operators see.
    """

    ok: bool
    error: str
    entries: list[Entry]


@dataclass(frozen=True)
class EntryDiff:
    """Entries that one side has and the other has not, as JSON; false when both are equal."""

    missing: list[str]
    extra: list[str]

    def __bool__(self) -> bool:
        """Whether there is a difference."""
        return bool(self.missing or self.extra)

    def __str__(self) -> str:
        """The counts and the first differences."""
        lines = [f"{len(self.missing)} entries missing, {len(self.extra)} too many"]
        lines += [f"- {line}" for line in self.missing[:5]] + [f"+ {line}" for line in self.extra[:5]]
        return "\n".join(lines)


def recorded_line(version: str) -> str:
    """The release line whose recorded answers hold for a version: Flink 2.3 gives those of 2.2."""
    return "1.20" if version.startswith("1.") else "2.2"


def missing_jdk() -> str:
    """Why the Java programs cannot be compiled here; empty when they can."""
    return explain_missing_jdk()


def _tool(name: str) -> str:
    path = find_tool(name)
    if path is None:
        raise HarnessError(explain_missing_jdk())
    return path


def install(version: str) -> FlinkHome:
    """Downloads one Flink (about 300 MB) unless the cache has it; parallel callers wait for the first."""
    install_jars(version, CACHE)
    return FlinkHome(version, CACHE / version)


def install_libraries(version: str) -> FlinkHome:
    """Install Flink as `install` does, with the runtime and planner of SQL and CEP, which are not in `flink-dist`."""
    return _install_more(version, "tables", "flink-cep|flink-table-(api-java-uber|planner-loader|runtime)")


def install_formats(version: str) -> FlinkHome:
    """Install Flink as `install_libraries` does, with tables of CSV files."""
    home = install_libraries(version)
    files = _install_more(version, "files", "flink-csv|flink-connector-files")
    return replace(home, libraries=(*home.libraries, *files.libraries))


def _install_more(version: str, name: str, jars: str) -> FlinkHome:
    home = install(version)
    libraries = home.path / name
    with _locked(f"{version}.lock"):
        if not libraries.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                folder = Path(scratch) / "libraries"
                download_jars(version, Path(scratch), folder, jars)
                folder.rename(libraries)
    return replace(home, libraries=tuple(sorted(libraries.glob("*.jar"))))


def _install_for(job: Job, version: str) -> FlinkHome:
    return install_libraries(version) if job.tables else install(version)


def _locked(name: str) -> AbstractContextManager[None]:
    return locked(CACHE, name)


def compile_job(home: FlinkHome, job: Job) -> Path:
    """Folder with the classes of the job and of the harness; compiled once per content of the sources."""
    return _compile(home, ["tests/flink/java/harness", *(folder.format(major=home.major) for folder in job.sources)])


def _compile(home: FlinkHome, folders: list[str]) -> Path:
    return compile_folders(home, ["tests/flink/java/worker", *folders])


def compile_folders(home: FlinkHome, folders: list[str]) -> Path:
    """Directory with the classes of source folders alone; compiled once per content of the sources."""
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.java"))
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]
    classes = home.path / "classes" / digest
    with _locked(f"{home.version}.lock"):
        if not classes.exists():
            classes.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=classes.parent) as scratch:
                command = [_tool("javac"), "-nowarn", "-proc:none", "-encoding", "UTF-8", "-d", f"{scratch}/classes"]
                command += ["-cp", _class_path(home.jars), *map(str, files)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise HarnessError(f"javac failed for Flink {home.version}:\n{done.stderr}")
                (Path(scratch) / "classes").rename(classes)
    return classes


def _class_path(parts: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, parts))


def _run_job(
    home: FlinkHome, program: str, job: Job, mapping: Mapping[str, Path], options: Mapping[str, object]
) -> tuple[int, str]:
    arguments = {"job": job.main, "max-parallelism": job.max_parallelism, **options}
    classes = compile_job(home, job)
    return _run(home, classes, program, arguments, job.settings, mapping, own_jvm=job.counted_uids)


def _run(
    home: FlinkHome,
    classes: Path,
    program: str,
    options: Mapping[str, object],
    settings: Mapping[str, str] = MappingProxyType({}),
    mapping: Mapping[str, Path] = MappingProxyType({}),
    *,
    own_jvm: bool = False,
) -> tuple[int, str]:
    command = [*_java(), f"-XX:SharedArchiveFile={_archive_classes(home)}", "-Duser.timezone=UTC"]
    command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
    command += [f"-Dlog4j.configurationFile={HERE / 'log4j2.properties'}"]
    command += ["-cp", _class_path([*home.jars, classes, HERE / "java" / "services"])]
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    arguments += [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
    mapped = "\n".join(f"{written}={local}" for written, local in mapping.items())
    return WORKERS.run(command, program, arguments, mapped, own_jvm=own_jvm)


def _java() -> list[str]:
    """Java with options that an archive of classes and its users share."""
    return [_tool("java"), "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def _archive_classes(home: FlinkHome) -> Path:
    """Archive of Flink's classes, with which a mini cluster starts in two thirds of the time; made once.

    A Java that it does not fit ignores it.
    """
    jars = sorted((home.path / "lib").glob("*.jar"))
    archive = home.path / "classes.jsa"
    job = orders_job()
    classes = compile_job(home, job)
    with _locked(f"{home.version}.lock"):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=home.path) as scratch:
                path = Path(scratch)
                command = [*_java(), f"-XX:DumpLoadedClassList={path / 'list'}", "-Xshare:off"]
                command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
                command += ["-cp", _class_path([*jars, classes, HERE / "java" / "services"]), "harness.Worker"]
                words = ["--job", job.main, "--max-parallelism", "128", "--backend", "rocksdb", "--parallelism", "2"]
                words += ["--directory", str(path), "--entries", str(path / "entries"), "--kind", "canonical"]
                words += ["--checkpoint-type", "CONFIGURED", "--pause-ms", "0"]
                request = write_request(path / "request", [str(path / "output.log"), "", "MakeSnapshot", *words])
                subprocess.run(command, input=request, capture_output=True, check=True, timeout=TIMEOUT_SECONDS)
                command = [*_java(), "-Xshare:dump", f"-XX:SharedClassListFile={path / 'list'}"]
                command += [f"-XX:SharedArchiveFile={path / 'jsa'}", "-cp", _class_path(jars)]
                subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_SECONDS)
                (path / "jsa").rename(archive)
    return archive


def _causes(output: str) -> str:
    return "\n".join(line.removeprefix("CAUSE ") for line in output.splitlines() if line.startswith("CAUSE "))


def make_snapshot(
    version: str,
    job: Job,
    target: Path,
    *,
    backend: str = "hashmap",
    parallelism: int = 2,
    kind: str = "canonical",
    checkpoint_type: str = "CONFIGURED",
    pause_ms: int = 0,
    written: str | None = None,
    start: Path | None = None,
    records: int | None = None,
) -> tuple[Path, list[Entry]]:
    """Runs a job to the end of its input and takes a snapshot below `target`.

    Args:
        version: of Flink.
        job: what to run; a job with rounds takes a checkpoint after each.
        target: directory of the snapshot; of a checkpoint, Flink's checkpoint directory.
        backend: `hashmap`, `rocksdb` or `forst`.
        parallelism: of the job.
        kind: `canonical` or `native` savepoint, or `checkpoint`.
        checkpoint_type: Flink's `CheckpointType`.
        pause_ms: how long the job rests after the first round.
        written: absolute path that Flink takes for `target`, and which the snapshot names; `target` itself by default.
        start: snapshot that the job starts from; none by default.
        records: what its sources then emit; by default what the job says.

    Returns:
        The snapshot and its entries as the operators of the running job see them.
    """
    home = _install_for(job, version)
    target.mkdir(parents=True, exist_ok=True)
    path = written or str(target)
    with tempfile.TemporaryDirectory() as scratch:
        entries = Path(scratch) / "entries.jsonl"
        options = {"backend": backend, "parallelism": parallelism, "directory": path, "entries": entries, "kind": kind}
        options |= {"checkpoint-type": checkpoint_type, "pause-ms": pause_ms}
        options |= {} if start is None else {"snapshot": start}
        options |= {} if records is None else {"records": records}
        if kind == "checkpoint":
            options["checkpoints"] = path
        code, output = _run_job(home, "MakeSnapshot", job, {path: target}, options)
        found = re.search(r"^SNAPSHOT (.+)$", output, re.MULTILINE)
        if code or found is None:
            raise HarnessError(f"no snapshot of {job.main} with Flink {version}:\n{output}")
        return target / Path(found[1]).relative_to(path), read_entries(entries)


def restore(
    version: str,
    snapshot: Path,
    job: Job,
    *,
    backend: str = "hashmap",
    parallelism: int = 2,
    mapping: Mapping[str, Path] = MappingProxyType({}),
) -> RestoreResult:
    """Restores a job from a snapshot and reads every entry through the state API of the restored operators.

    Args:
        version: of Flink.
        snapshot: directory with the `_metadata`; a savepoint of either format or a checkpoint, whoever wrote it.
        job: what to run, with the max parallelism of the snapshot.
        backend: `hashmap`, `rocksdb` or `forst`.
        parallelism: of the restored job.
        mapping: absolute directories that the snapshot names, and where they are.
    """
    home = _install_for(job, version)
    with tempfile.TemporaryDirectory() as scratch:
        entries = Path(scratch) / "entries.jsonl"
        options = {"backend": backend, "parallelism": parallelism, "snapshot": snapshot, "entries": entries}
        code, output = _run_job(home, "RestoreCheck", job, mapping, options)
        if code == REFUSED:
            return RestoreResult(ok=False, error=_causes(output), entries=[])
        if code:
            raise HarnessError(f"the restore check of {snapshot} with Flink {version} failed:\n{output}")
        return RestoreResult(ok=True, error="", entries=read_entries(entries))


@contextmanager
def running_job(version: str, job: Job, checkpoints: Path, *, backend: str = "rocksdb") -> Iterator[None]:
    """Runs a job during the block, with the checkpoints that its settings ask for; the last ones stay.

    Args:
        version: of Flink.
        job: what to run; the interval of its checkpoints is one of its settings.
        checkpoints: Flink's checkpoint directory.
        backend: `hashmap`, `rocksdb` or `forst`.

    Raises:
        HarnessError: the job does not start, or has failed before the block ended.
    """
    home = _install_for(job, version)
    checkpoints.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as pool:
        until = Path(scratch) / "until"
        options = {"backend": backend, "parallelism": 2, "checkpoints": checkpoints, "until": until}
        running = pool.submit(_run_job, home, "RunUntil", job, {}, options)
        try:
            while not running.done() and not any(checkpoints.glob("*/chk-*/_metadata")):
                time.sleep(0.1)
            if not running.done():
                yield
        finally:
            until.touch()
            code, output = running.result()
            if code:
                raise HarnessError(f"{job.main} with Flink {version} did not run to the end:\n{output}")


def dump_rocksdb(version: str, directory: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    """Keys and values of every column family of a RocksDB directory, in order, as Flink's own RocksDB reads them.

    Operands of a list that were not merged yet come merged (`StringAppendTESTOperator`, a comma between).

    Args:
        version: of Flink.
        directory: with `CURRENT`, a manifest and the SST files under the names that the manifest gives; only read.
    """
    home = install(version)
    families: dict[str, list[tuple[bytes, bytes]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        entries = Path(scratch) / "entries.hex"
        options = {"directory": directory, "entries": entries}
        classes = _compile(home, ["tests/flink/java/harness"])
        code, output = _run(home, classes, "DumpRocksDB", options)
        if code:
            raise HarnessError(f"Flink {version} cannot read the RocksDB directory {directory}:\n{output}")
        for line in entries.read_text().splitlines():
            name, *entry = (bytes.fromhex(word) for word in line.split(" "))
            family = families.setdefault(name.decode(), [])
            if entry:
                family.append((entry[0], entry[1]))
    return families


def resolve_pairs(version: str, earlier: str = "") -> str:
    """What Flink says of many pairs of serializers: lines as `harness.ResolvePairs` describes them.

    Args:
        version: of Flink.
        earlier: the lines of an earlier release, whose snapshots are old sides too.
    """
    home = install_libraries(version)
    folder = "tests/flink/java/compat"
    program = _compile(home, [f"{folder}/program", f"{folder}/program-flink-{home.major}"])
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "pairs.tsv"
        sides = {side: _compile(home, [f"{folder}/{side}"]) for side in ("before", "after")}
        options: dict[str, object] = {**sides, "output": output}
        if earlier:
            options["earlier"] = Path(scratch) / "earlier.tsv"
            (Path(scratch) / "earlier.tsv").write_text(earlier, encoding="utf-8")
        code, text = _run(home, program, "ResolvePairs", options)
        if code:
            raise HarnessError(f"Flink {version} does not resolve the pairs:\n{text}")
        return output.read_text(encoding="utf-8")


def redistribute(version: str, *, seed: int, cases: int) -> str:
    """How Flink hands out random operator state: lines as `harness.RecordRedistribution` describes them."""
    home = install(version)
    classes = _compile(home, ["tests/flink/java/harness", "tests/flink/java/redistribution"])
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "cases.jsonl"
        options = {"seed": seed, "cases": cases, "output": output}
        code, text = _run(home, classes, "RecordRedistribution", options)
        if code:
            raise HarnessError(f"Flink {version} does not hand out the state:\n{text}")
        return output.read_text(encoding="utf-8")


def describe_states(version: str) -> str:
    """Descriptions of states in Flink's logs of changes: lines as `harness.RecordDescriptions` describes them."""
    home = install(version)
    classes = _compile(home, ["tests/flink/java/harness", "tests/flink/java/changes"])
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "descriptions.txt"
        code, text = _run(home, classes, "RecordDescriptions", {"output": output})
        if code:
            raise HarnessError(f"Flink {version} does not describe the states:\n{text}")
        return output.read_text(encoding="utf-8")


def read_entries(path: Path) -> list[Entry]:
    """Dump lines of a file, gzipped or not."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_entries(path: Path, entries: Iterable[Entry]) -> None:
    """Dump lines into a gzipped file; equal entries give equal bytes."""
    text = "".join(json.dumps(entry, ensure_ascii=True, separators=(",", ":")) + "\n" for entry in entries)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def diff_entries(expected: Iterable[Entry], actual: Iterable[Entry], ignored: Iterable[str] = VOLATILE) -> EntryDiff:
    """Compares dump lines as multisets, whatever subtask holds them; each subtask has all of a broadcast state.

    Lines that are no entries (coordinators, raw state) do not count.

    Args:
        expected: what should be.
        actual: what is.
        ignored: fields that do not count.
    """
    wanted, seen = _count(expected, set(ignored)), _count(actual, set(ignored))
    return EntryDiff(sorted((wanted - seen).elements()), sorted((seen - wanted).elements()))


def _count(entries: Iterable[Entry], ignored: set[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for entry in entries:
        if entry["kind"] not in ENTRY_KINDS:
            continue
        stable = {key: value for key, value in entry.items() if key not in ignored}
        line = json.dumps(stable, sort_keys=True)
        counts[line] = 1 if entry["kind"] == "broadcast" else counts[line] + 1
    return counts
