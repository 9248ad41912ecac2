"""A whole upgrade through commands of the user, each of which is a process."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from state_pipelines.flink.connections import VERBS
from state_pipelines.upgrades.upgrade_reports import Result
from state_pipelines.upgrades.upgrade_run import upgrade

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import json, os, shutil, sys
verb, store, snapshot = sys.argv[1:]
asked = json.load(sys.stdin)
with open(store) as file:
    jobs = json.load(file)
job = jobs.get(asked.get("job_id"))
answer = {}
if job is None and "job_id" in asked and verb != "start":
    print("no such job", file=sys.stderr)
    sys.exit(4)
if verb == "describe":
    answer = {"flink-version": "2.2.1"}
elif verb == "list_jobs":
    answer = {"jobs": [{"jid": name, "name": "orders", "state": each["state"]} for name, each in jobs.items()]}
elif verb == "read_status":
    answer = {"status": job["state"]}
elif verb == "read_job":
    answer = {"jid": asked["job_id"], "name": "orders", "state": job["state"]}
elif verb in ("trigger_savepoint", "stop"):
    path = os.path.join(asked["directory"], "savepoint-" + asked["trigger_id"][:6])
    if not os.path.exists(path):
        shutil.copytree(snapshot, path)
        job["savepoints"].append([asked["trigger_id"], path])
    if verb == "stop":
        job["state"] = "FINISHED"
    answer = {"request-id": asked["trigger_id"]}
elif verb == "poll_savepoint":
    (path,) = [path for trigger, path in job["savepoints"] if trigger == asked["trigger_id"]]
    answer = {"status": {"id": "COMPLETED"}, "operation": {"location": path}}
elif verb == "start":
    state = "FAILED" if asked["jar"].endswith("broken.jar") else "RUNNING"
    jobs.setdefault(asked["job_id"], {"state": state, "savepoints": [], "from": asked["savepoint"], "read": 0})
    answer = {"jobid": asked["job_id"]}
elif verb == "cancel":
    job["state"] = "CANCELED"
elif verb == "read_exceptions":
    failure = {"exceptionName": "Broken", "stacktrace": "java.lang.Broken: it is broken", "timestamp": 1}
    answer = {"exceptionHistory": {"entries": [failure] if job["state"] == "FAILED" else []}}
elif verb == "read_checkpoints":
    job["read"] += 1
    found = [
        {"id": number, "status": "COMPLETED", "is_savepoint": True, "trigger_timestamp": 1, "external_path": path}
        for number, (_, path) in enumerate(job["savepoints"], 1)
    ]
    counts = {"completed": job["read"], "failed": 0, "in_progress": 0, "restored": 0}
    answer = {"counts": counts, "history": found}
elif verb == "read_load":
    answer = {"restarts": 0}
with open(store, "w") as file:
    json.dump(jobs, file)
print(json.dumps(answer))
"""
OLD = "a" * 32


@pytest.mark.slow
@pytest.mark.parametrize(("new", "result"), [("new.jar", Result.UPGRADED), ("broken.jar", Result.WENT_BACK)])
def test_commands_carry_out_an_upgrade(tmp_path: Path, snapshot: Path, new: str, result: Result) -> None:
    store = tmp_path / "jobs.json"
    store.write_text(json.dumps({OLD: {"state": "RUNNING", "savepoints": [], "from": "", "read": 1}}))
    (tmp_path / "flink.py").write_text(SCRIPT)
    for name in ("old.jar", new):
        (tmp_path / name).write_bytes(name.encode())
    command = [sys.executable, "-I", "-S", "flink.py"]
    commands = {verb: [*command, verb, str(store), str(snapshot)] for verb in VERBS if "checkpoint" not in verb}
    commands["read_checkpoints"] = [*command, "read_checkpoints", str(store), str(snapshot)]
    settings = {"savepoints": str(tmp_path / "savepoints"), "old": {"jar": "old.jar"}, "new": {"jar": new}}
    body = {"name": "orders", "cluster": {"commands": commands}, "results": "results", "job_classes": []}
    (tmp_path / "JOB.yaml").write_text(json.dumps({**body, "upgrade": settings}))
    report = upgrade(str(tmp_path / "JOB.yaml"), sleep=lambda seconds: None)
    assert report.result is result, report.list_lines()
    jobs = json.loads(store.read_text())
    assert len(jobs) == (2 if result is Result.UPGRADED else 3)
    (running,) = [each for each in jobs.values() if each["state"] == "RUNNING"]
    assert running["from"] == jobs[OLD]["savepoints"][-1][1]
    if result is Result.WENT_BACK:
        assert "it is broken" in report.lines[0]
