"""The command line: one module per command, loaded when its command is called."""

from __future__ import annotations

from state_pipelines.cli.commands import main

__all__ = ["main"]
