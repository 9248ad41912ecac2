"""Serializer snapshots and trees: `registry` reads and writes, `build` constructs, `text` shows and parses."""

from __future__ import annotations

from state_pipelines.serializers import (  # noqa: F401  the families register themselves
    avro,
    basic,
    beam,
    cep,
    class_bound,
    containers,
    enums,
    jdbc,
    kryo,
    pojo,
    protobuf,
    python,
    scala,
    scala_api,
    streaming_runtime,
    table_runtime,
)
