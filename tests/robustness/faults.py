"""Long form of the faults of writers: `python -m tests.robustness.faults` fails every request in every way."""

from __future__ import annotations

import argparse
import sys

from tests.robustness.__main__ import write
from tests.robustness.faulty_writers import WAYS, WRITERS, Tally, fail_requests, race, run_undisturbed

OUTCOMES = ("finished", "refused", "interrupted", "killed", "not noticed")


def main() -> int:
    """Run the writers that were asked for, and print what came of them; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.faults", description="Fail every request.")
    parser.add_argument("--writer", action="append", choices=WRITERS, help="may be repeated; default: all")
    parser.add_argument("--way", action="append", choices=[*WAYS, RACE], help="may be repeated; default: all")
    options = parser.parse_args()
    found = False
    titles = ("requests", "attempts", *OUTCOMES, "discarded", "findings")
    write(f"{'writer':22} " + " ".join(f"{title:>11}" for title in titles))
    for writer in options.writer or WRITERS:
        count, _ = run_undisturbed(writer)
        tally, attempts = Tally(), 0
        for way in options.way or [*WAYS, RACE]:
            attempts += count
            if way == RACE:
                race(writer, range(count), tally)
            else:
                fail_requests(writer, way, range(count), tally)
        numbers = (count, attempts, *(tally.outcomes[each] for each in OUTCOMES))
        numbers = (*numbers, tally.reruns["--discard-partial"], len(tally.findings))
        write(f"{writer:22} " + " ".join(f"{number:11,}" for number in numbers))
        for finding in tally.findings:
            write(f"  {finding}")
        found |= bool(tally.findings)
    return 1 if found else 0


RACE = "second writer"

if __name__ == "__main__":
    sys.exit(main())
