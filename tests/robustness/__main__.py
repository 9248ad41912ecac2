"""Long form of the tests: `python -m tests.robustness --executions 100000`."""

from __future__ import annotations

import argparse
import sys

from tests.robustness.guarded_runs import run
from tests.robustness.readers import READERS


def main() -> int:
    """Run the readers that were asked for, and print what came of them; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description="Read damaged input.")
    parser.add_argument("--executions", type=int, default=1000, help="attempts of each reader (default: 1000)")
    parser.add_argument("--reader", action="append", choices=sorted(READERS), help="may be repeated; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first attempt, to repeat a finding")
    options = parser.parse_args()
    found = False
    write(f"{'reader':22} {'attempts':>9} {'read':>8} {'refused':>8} {'findings':>8} {'seconds':>8}")
    for name in options.reader or READERS:
        outcome = run(name, options.seed, range(options.first, options.first + options.executions))
        count = outcome.findings.total()
        attempts = outcome.read + outcome.refused + count
        write(f"{name:22} {attempts:9} {outcome.read:8} {outcome.refused:8} {count:8} {outcome.seconds:8.1f}")
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
