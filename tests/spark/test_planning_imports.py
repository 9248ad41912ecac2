from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.snapshot.savepoints import orders

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
from state_pipelines.spark.splits import StateOptions, find_schema, find_state, open_options, split_state

raw = {"path": sys.argv[1], "operatorId": "orders", "stateVarName": "order", "uids": "orders"}
options = StateOptions.parse(raw)
state = find_state(open_options(raw), options)
find_schema(state, options)
assert len(list(split_state(state, options)))
print("numba" in sys.modules)
"""


def test_reads_are_planned_without_kernels() -> None:
    # Spark plans each read in a process of its own, and importing numba alone takes a second there.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(orders().path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
