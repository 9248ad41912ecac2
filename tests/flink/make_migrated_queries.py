"""Record plans and savepoints of the pairs of queries in `migrated_queries`, for tests without Flink.

`python -m tests.flink.make_migrated_queries [PAIR…]` writes `tests/data/sql/migrated/<pair>.tar.gz`: the plans
`old.json` and `new.json`, and the savepoint of the old query.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.flink.harness import ROOT
from tests.flink.migrated_queries import PAIRS, open_flink, take_savepoint, write_data

FOLDER = ROOT / "tests/data/sql/migrated"
VERSION = "2.2.1"


def pack(files: dict[str, bytes]) -> bytes:
    """Pack files into a compressed archive without times and owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0)


def main() -> None:
    """Record all pairs."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, open_flink(VERSION, Path(scratch)) as flink:
        for pair in [each for each in PAIRS if not sys.argv[1:] or each.name in sys.argv[1:]]:
            directory = Path(scratch) / pair.name
            write_data(directory)
            plan, savepoint = take_savepoint(flink, pair, directory, {})
            new = flink.compile(pair.new, {**pair.settings, **pair.new_settings})
            files = {"old.json": plan.encode(), "new.json": new.encode()}
            files |= {f"savepoint/{each.name}": each.read_bytes() for each in sorted(Path(savepoint).iterdir())}
            (FOLDER / f"{pair.name}.tar.gz").write_bytes(pack(files))


if __name__ == "__main__":
    main()
