"""Many attempts in a process of its own, which is ended when one takes too long, and cannot take more memory."""

from __future__ import annotations

import gc
import math
import multiprocessing
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.robustness.readers import Finding, Result, attempt, make_reader

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MOST_SECONDS = 10.0
"""Of one attempt."""

MOST_BYTES = 1 << 30
"""Of address space, above what the process has after it has read the sound input."""

_POLL = 0.2
_STARTED, _NUMBER, _RESULTS = range(3)


@dataclass
class Outcome:
    """Results of the attempts of one reader.

    Attributes:
        results: attempts without a finding.
        findings: attempts that ended otherwise.
        examples: by finding, the number of the first such attempt.
        seconds: of the attempts; without the time in which the reader is prepared.
    """

    results: Counter[Result] = field(default_factory=Counter)
    findings: Counter[Finding] = field(default_factory=Counter)
    examples: dict[Finding, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, finding: Finding, number: int) -> None:
        """Count a finding."""
        self.findings[finding] += 1
        self.examples.setdefault(finding, number)


def run(name: str, seed: int, numbers: range) -> Outcome:
    """Make the attempts of some numbers; a process that dies or hangs is a finding, and another one goes on."""
    outcome = Outcome()
    context = multiprocessing.get_context("spawn")
    first = numbers.start
    while first < numbers.stop:
        # When the attempt started (0 before the first), its number, and how many ended with each result.
        progress = context.Array("d", _RESULTS + len(Result), lock=False)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(name, seed, range(first, numbers.stop), progress, sender))
        process.start()
        sender.close()
        hung = _watch(process, progress, receiver, outcome)
        process.join()
        number = int(progress[_NUMBER])
        outcome.results.update({result: int(progress[_RESULTS + result]) for result in Result})
        if not progress[_STARTED]:
            raise RuntimeError(f"the reader {name} does not read its sound input")
        if not hung and process.exitcode == 0:
            break
        kind, text = ("Hang", f"more than {MOST_SECONDS:g} s") if hung else ("Crash", f"exit code {process.exitcode}")
        outcome.add(Finding(kind, "the process", text), number)
        first = number + 1
    return outcome


def _watch(process: Any, progress: Any, receiver: Connection, outcome: Outcome) -> bool:
    """Collect findings until the process ends; returns whether it had to be ended."""
    while True:
        try:
            while receiver.poll(_POLL):
                message = receiver.recv()
                if isinstance(message, float):
                    outcome.seconds += message
                else:
                    outcome.add(*message)
        except EOFError:
            return False
        if progress[_STARTED] and time.monotonic() - progress[_STARTED] > MOST_SECONDS:
            process.kill()
            return True


def _work(name: str, seed: int, numbers: range, progress: Any, sender: Connection) -> None:
    # Kernels are compiled and caches filled by sound input.
    make_reader(name).read_sound()
    # What stays is not looked at again by each collection.
    gc.collect()
    gc.freeze()
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, size + MOST_BYTES))
    begun = time.monotonic()
    for number in numbers:
        progress[_NUMBER] = number
        progress[_STARTED] = time.monotonic()
        result = attempt(name, seed, number)
        if isinstance(result, Finding):
            sender.send((result, number))
        else:
            progress[_RESULTS + result] += 1
    # The end of the process is no attempt.
    progress[_STARTED] = math.inf
    sender.send(time.monotonic() - begun)
