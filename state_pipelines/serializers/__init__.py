"""Serializer snapshots and trees: `registry` reads and writes, `build` constructs, `text` shows and parses."""

from __future__ import annotations

from state_pipelines.serializers import (  # noqa: F401  the families register themselves
    beam,
    java_types,
    table_runtime,
)
