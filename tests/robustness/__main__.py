"""Long form of the tests: `python -m tests.robustness --executions 100000`, and with `--every-byte`."""

from __future__ import annotations

import argparse
import sys

from tests.robustness.every_byte import EVERY_BYTE
from tests.robustness.guarded_runs import run
from tests.robustness.readers import RANDOM, READERS, Result


def main() -> int:
    """Run the readers that were asked for, and print what came of them; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description="Read damaged input.")
    parser.add_argument(
        "--executions", type=int, default=None, help="attempts of each reader (default: 1000, or each byte)"
    )
    parser.add_argument(
        "--every-byte",
        action="store_true",
        help="flip each byte of small snapshots, and end their files before it, instead of random damage",
    )
    parser.add_argument("--reader", action="append", choices=sorted(READERS), help="may be repeated; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first attempt, to repeat a finding")
    options = parser.parse_args()
    found = False
    columns = "".join(f" {each.name.lower():>8}" for each in Result)
    write(f"{'reader':22} {'attempts':>9}{columns} findings  seconds")
    for name in options.reader or (EVERY_BYTE if options.every_byte else RANDOM):
        executions = options.executions or (EVERY_BYTE[name]().count if name in EVERY_BYTE else 1000)
        outcome = run(name, options.seed, range(options.first, options.first + executions))
        count = outcome.findings.total()
        attempts = outcome.results.total() + count
        columns = "".join(f" {outcome.results[each]:8}" for each in Result)
        write(f"{name:22} {attempts:9}{columns} {count:8} {outcome.seconds:8.1f}")
        for finding, times in outcome.findings.most_common():
            write(f"  {times} x {finding.kind} at {finding.place}: {finding.text}")
            first = outcome.examples[finding]
            write(
                f"    python -m tests.robustness --reader {name} --seed {options.seed} --first {first} --executions 1"
            )
        found |= bool(count)
    return 1 if found else 0


def write(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
