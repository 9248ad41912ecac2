from __future__ import annotations

import subprocess
import sys
from tempfile import TemporaryFile

import pytest

from benchmarks.processes import Clock, Cpu, watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc")

BURN = "import time\nwhile time.process_time() < 0.4: pass"
SPAWN = "import subprocess, sys; subprocess.{call}([sys.executable, '-c', {code!r}])"
RUNS_IT = SPAWN.format(call="run", code=BURN)
LEAVES_IT = SPAWN.format(call="Popen", code=BURN)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_the_cpu_of_a_grandchild_counts() -> None:
    usage = watch(python(SPAWN.format(call="run", code=RUNS_IT)))
    assert usage.code == 0
    assert usage.cpu.total >= 0.4
    assert usage.roles["driver"].cpu.total < usage.cpu.total - 0.3


def test_the_cpu_of_a_grandchild_that_lives_longer_than_its_parents_counts() -> None:
    usage = watch(python(SPAWN.format(call="run", code=LEAVES_IT)))
    assert usage.cpu.total >= 0.4


def test_the_cpu_of_children_that_nobody_waits_for_counts() -> None:
    ignore = "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    start = f"child = subprocess.Popen([sys.executable, '-S', '-c', {BURN!r}])\n"
    stay = "while os.path.exists(f'/proc/{child.pid}'): time.sleep(0.01)"
    usage = watch(python(f"{ignore}{start}{stay}"))
    # The end of the child, after the last look at it, is not seen.
    assert 0.25 <= usage.cpu.total <= 0.8


def test_shares_of_the_roles_make_the_total() -> None:
    usage = watch(python(RUNS_IT))
    total = sum((role.cpu for role in usage.roles.values()), Cpu())
    assert total.total == pytest.approx(usage.cpu.total, abs=0.03)
    assert usage.roles["workers"].processes >= 1
    assert usage.roles["jvm"].processes == 0


def test_memory_is_that_of_the_process_that_had_it() -> None:
    usage = watch(python("import time; data = bytes(bytearray(b'x' * (200 << 20))); time.sleep(0.5)"))
    assert usage.roles["driver"].largest >= 200 << 20
    assert usage.peak >= 200 << 20


def test_the_exit_code_and_the_output_come_through() -> None:
    with TemporaryFile() as output:
        assert watch(python("print('out'); raise SystemExit(3)"), stdout=output).code == 3
        output.seek(0)
        assert output.read() == b"out\n"


def test_what_takes_too_long_is_ended_with_all_its_children() -> None:
    code = "import time; print('here', flush=True); time.sleep(60)"
    with pytest.raises(TimeoutError, match=r"longer than 0\.5 s"):
        watch(python(SPAWN.format(call="run", code=code)), timeout=0.5)


def test_other_children_of_the_watching_process_are_left_alone() -> None:
    other = subprocess.Popen(python("raise SystemExit(7)"))
    watch(python("import time; time.sleep(0.3)"))
    assert other.wait() == 7


def test_a_clock_counts_children_that_have_ended() -> None:
    clock = Clock()
    with clock.measure("work"):
        subprocess.run(python(BURN), check=True)
    cpu, wall = clock.seconds["work"]
    assert cpu.total >= 0.4
    assert wall > 0


def test_a_clock_counts_children_that_live() -> None:
    clock = Clock()
    code = f"{BURN}\nprint('done', flush=True)\ninput()"
    with subprocess.Popen(python(code), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        with clock.measure("work"):
            assert child.stdout.readline() == b"done\n"
        child.communicate(b"\n")
    assert clock.seconds["work"][0].total >= 0.3
