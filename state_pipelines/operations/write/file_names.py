"""Names of new data files."""

from __future__ import annotations

import uuid


def make_file_name() -> str:
    """A name for a data file, as Flink makes them: a random UUID."""
    return str(uuid.uuid4())
