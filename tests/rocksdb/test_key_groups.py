from __future__ import annotations

from dataclasses import replace

import pytest

from state_pipelines.errors import FormatError
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle, KeyGroupRange
from tests.snapshots import CASES


def test_key_groups_that_no_key_can_name_are_an_error_of_the_format() -> None:
    """Keys have one byte for their key group where there are 128."""
    snapshot = next(case for case in CASES if case.name == "types-2.2-rocksdb-incremental").open()
    operator = snapshot.operator("state-kinds")
    handle = operator.metadata.subtasks[0].managed_keyed_state
    assert isinstance(handle, IncrementalRemoteKeyedStateHandle)
    file = snapshot.handles.open_keyed(replace(handle, key_groups=KeyGroupRange(0, 300)), operator.record_context)
    assert file is not None
    with pytest.raises(FormatError, match="key groups 0-299 do not fit into the 1 bytes"):
        list(file.scan([0]))
