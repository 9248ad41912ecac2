"""`python -m state_pipelines`: the command line."""

from __future__ import annotations

from state_pipelines.cli import main

if __name__ == "__main__":
    main(prog_name="state-pipelines")
