from __future__ import annotations

import pickle

from state_pipelines.errors import ClusterError


def test_an_error_keeps_what_decides_about_another_attempt_in_other_processes() -> None:
    error = ClusterError("refused", transient=True, in_doubt=True)
    error.details["flink"] = "java.lang.IllegalStateException: no slots"
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.transient, copied.is_in_doubt, copied.details) == (True, True, error.details)
