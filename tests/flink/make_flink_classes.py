"""Makes `state_pipelines/serializers/flink_classes.tsv`: the serializer classes of each release of Flink.

    python -m tests.flink.make_flink_classes [--archives DIR]

A snapshot names the classes of its serializer snapshots, and Flink loads them by these names. The classes are read from
the jars of `apache-flink-libraries` (before 1.13 those of `apache-flink`) on PyPI, which are those of Flink's
distribution: `lib` and `opt`. Connectors and formats are not part of it, and no package has the jars of 1.8.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.javaclasses import parse_class
from state_pipelines.serializers.snapshot_classes import CLASSES_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

RELEASES = (
    *((each, "apache-flink") for each in ("1.9.3", "1.10.3", "1.11.4", "1.12.5")),
    *((each, "apache-flink-libraries") for each in ("1.13.6", "1.14.6", "1.15.4", "1.16.3", "1.17.2", "1.18.1")),
    *((each, "apache-flink-libraries") for each in ("1.19.3", "1.20.5", "2.0.2", "2.1.3", "2.2.1", "2.3.0")),
)
_ROOTS = frozenset(
    {
        "org.apache.flink.api.common.typeutils.TypeSerializer",
        "org.apache.flink.api.common.typeutils.TypeSerializerSnapshot",
    }
)
_FLINK = "org/apache/flink/"
_JAR = re.compile(r"(?:lib|opt)/[^/]*\.jar$")
# Gelly was a library of its own before it left the distribution; Scala makes anonymous serializers, without snapshots.
_LEFT_OUT = ("org.apache.flink.graph.", "$$anon$")
# The class or one of its ancestors has one of these in its name.
_WORDS = (b"Serializer", b"Snapshot")


def main() -> None:
    """Read the classes of every release and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=Path, help="keep the downloads (3.6 GB) here, and use those that are here")
    arguments = parser.parse_args()
    classes = {}
    with tempfile.TemporaryDirectory() as scratch:
        for version, package in RELEASES:
            folder = (arguments.archives or Path(scratch)) / version
            archive = _download(f"{package}=={version}", folder)
            classes[version] = sorted(find_serializers(dict(_list_ancestors(archive))))
            if arguments.archives is None:
                archive.unlink()
            sys.stdout.write(f"{version}: {len(classes[version])} classes\n")
    CLASSES_FILE.write_text(format_classes(classes))


def format_classes(classes: Mapping[str, Iterable[str]]) -> str:
    """Return the text of the table.

    Args:
        classes: binary names of the classes by version of Flink, such as 2.2.1, in the order of the versions.
    """
    owners: dict[str, list[int]] = {}
    for index, names in enumerate(classes.values()):
        for name in names:
            owners.setdefault(name, []).append(index)
    lines = [f"{name}\t{_format_ranges(owners[name])}" for name in sorted(owners)]
    return "\n".join(["\t".join(classes), *lines, ""])


def _format_ranges(indexes: list[int]) -> str:
    """Write ascending numbers as ranges, such as `0-3,7`."""
    starts = [each for each in indexes if each - 1 not in indexes]
    ends = [each for each in indexes if each + 1 not in indexes]
    return ",".join(f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))


def find_serializers(ancestors: Mapping[str, tuple[frozenset[str], bool]]) -> Iterator[str]:
    """Yield the classes that are serializers or serializer snapshots, and not abstract.

    Args:
        ancestors: by class, its super class and interfaces, and whether it is abstract.
    """
    children = defaultdict(list)
    for name, (parents, _) in ancestors.items():
        for parent in parents:
            children[parent].append(name)
    found: set[str] = set()
    pending = [*_ROOTS]
    while pending:
        fresh = set(children[pending.pop()]) - found
        found |= fresh
        pending += fresh
    return (name for name in found if not ancestors[name][1] and not any(each in name for each in _LEFT_OUT))


def _download(requirement: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("apache*")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
        if requirement.startswith(("apache-flink==1.11", "apache-flink==1.12")):
            # Wheels with the jars, for the Python of their time.
            command += ["--only-binary=:all:", "--python-version", "3.7", "--implementation", "cp"]
            command += ["--abi", "cp37m", "--platform", "manylinux1_x86_64"]
        subprocess.run(command, check=True)
    (archive,) = folder.glob("apache*")
    return archive


def _list_ancestors(archive: Path) -> Iterator[tuple[str, tuple[frozenset[str], bool]]]:
    for jar in _open_jars(archive):
        yield from _read_jar(jar)


def _open_jars(archive: Path) -> Iterator[bytes]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from (wheel.read(name) for name in wheel.namelist() if _JAR.search(name))
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            opened = sdist.extractfile(member) if _JAR.search(member.name) else None
            if opened is not None:
                yield opened.read()


def _read_jar(jar: bytes) -> Iterator[tuple[str, tuple[frozenset[str], bool]]]:
    with zipfile.ZipFile(io.BytesIO(jar)) as opened:
        for name in opened.namelist():
            if name.endswith(".jar"):
                yield from _read_jar(opened.read(name))
            elif name.startswith(_FLINK) and name.endswith(".class"):
                content = opened.read(name)
                if any(word in content for word in _WORDS):
                    found = parse_class(content, name)
                    parents = frozenset({*found.interfaces, found.parent.name if found.parent else ""})
                    yield found.name, (parents, found.is_abstract or found.is_interface)


if __name__ == "__main__":
    main()
