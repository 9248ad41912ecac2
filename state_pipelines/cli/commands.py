"""The commands, and what they have in common: exit codes and errors.

Exit code 0 is fine, 1 means that the answer is no (incompatible, a check failed), 2 wrong use or unreadable input, 3
that there is no definite answer, as about formats of an unknown version; with --strict also that something could not be
shown; 130 that it was interrupted, 143 that it was asked to end (SIGTERM).
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING

import click

from state_pipelines import __version__
from state_pipelines.cli.interrupts import keep_interrupts
from state_pipelines.errors import IncompatibleError, ProofError, StateError, UnsupportedVersionError
from state_pipelines.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.cli.interrupts import Interrupts

# A command imports what it needs, and some need Spark: only the module of the called one is loaded.
COMMANDS = {
    "inspect": ("inspect", "Show what a snapshot holds."),
    "read": ("read", "Show the rows of one state."),
    "dump": ("dump", "Print every entry of a snapshot as JSON lines."),
    "diff": ("diff", "Tell what is different between two snapshots."),
    "check": ("check", "Tell whether state fits new serializers."),
    "migrate": ("migrate", "Write a migrated snapshot and prove it."),
    "history": ("history", "List the revisions of a directory."),
    "current": ("current", "Tell which revision a snapshot is at."),
    "revision": ("revision", "Write a new revision file, empty or drafted."),
    "bootstrap": ("bootstrap", "Write a savepoint out of Parquet files."),
    "convert": ("convert", "Write a snapshot in another format, or in another location."),
    "rescale": ("rescale", "Write a snapshot for other parallelism, key groups or operators."),
    "erase": ("erase", "Write a snapshot without some keys, or tell where they are."),
    "retain": ("retain", "Show which snapshots and files can go, and why."),
    "verify": ("verify", "Tell whether snapshots can be restored."),
    "savepoint": ("savepoint", "Take a savepoint of a running job, which runs on."),
    "status": ("status", "Show how a running job and its checkpoints are."),
    "rehearse": ("rehearse", "Try the upgrade of a running job, which runs on."),
    "upgrade": ("upgrade", "Upgrade a running job, or go back."),
    "sql": ("sql", "Compile SQL scripts to plans, off line."),
    "init": ("init", "Describe a Flink job for Dagster."),
    "prepare": ("prepare", "Make what lets Spark start faster, once."),
    "demo": ("demo", "Run the orders example from end to end."),
}
"""Name of each command, its module, and what it does."""

_NEW_OBJECTS = 100_000
"""New objects after which the garbage collector looks for cycles."""

ANSWER_IS_NO = 1
WRONG_USE = 2
UNDETERMINED = 3


class CommandGroup(click.Group):
    """The root command: finds commands by name and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of a first use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; imports its module."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"state_pipelines.cli.{COMMANDS[cmd_name][0]}")
        command = module.command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run a command.

        A reader that goes away (`| head`) ends it without a word.
        """
        # What is read of a snapshot are values without cycles, of which there may be hundreds of thousands: looking
        # through them again and again finds nothing.
        gc.set_threshold(_NEW_OBJECTS)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal may have fewer characters than the names in a snapshot.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            with keep_interrupts() as interrupts:
                return _invoke(super().invoke, ctx, interrupts)
        except KeyboardInterrupt as interrupt:
            click.echo("interrupted", err=True)
            _show_notes(interrupt)
            _show_notes(interrupt.__cause__)
            ctx.exit(interrupts.exit_code)
        except StateError as error:
            if ctx.meta.get("debug"):
                traceback.print_exc()
            if isinstance(error, ProofError):
                # Imported late: nothing else needs it, and tables take time to load.
                from state_pipelines.cli.proofs import show_failed_proof

                show_failed_proof(error.report, as_json=bool(ctx.meta.get("json")))
            # Imported late, as above.
            from state_pipelines.snapshot.representation import escape_terminal

            click.echo(f"error: {escape_terminal(' '.join(str(error).split()))}", err=True)
            _show_notes(error)
            ctx.exit(_choose_code(error))
        except MemoryError:
            if ctx.meta.get("debug"):
                traceback.print_exc()
            click.echo(
                "error: the memory of this process does not suffice. Give it more, if the files are intact", err=True
            )
            ctx.exit(WRONG_USE)
        except BrokenPipeError:
            _drop_output()
            ctx.exit(0)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            _drop_output()
            click.echo("error: the output cannot be written: no space is left", err=True)
            ctx.exit(WRONG_USE)


def _choose_code(error: StateError) -> int:
    """The exit code of a command that ends with an error."""
    if isinstance(error, IncompatibleError | ProofError):
        return ANSWER_IS_NO
    # Bytes of a version that is not known may be whole.
    return UNDETERMINED if isinstance(error, UnsupportedVersionError) else WRONG_USE


def _invoke(call: Callable[[click.Context], object], ctx: click.Context, interrupts: Interrupts) -> object:
    """Run a command; an error after a signal results from that, as where it has ended other processes."""
    try:
        return call(ctx)
    except click.exceptions.Exit:
        raise
    except Exception as error:
        if interrupts.received:
            raise KeyboardInterrupt from error
        raise


def _show_notes(error: BaseException | None) -> None:
    """Print what was added to an error on its way, such as that files could not be removed."""
    from state_pipelines.snapshot.representation import escape_terminal

    for note in getattr(error, "__notes__", ()):
        click.echo(f"note: {escape_terminal(redact(' '.join(note.split())))}", err=True)


def _drop_output() -> None:
    """Let the rest of the standard output, which may be in a buffer, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Remember that tracebacks are wanted; the option may stand before or after the name of the command."""
    if value:
        ctx.meta["debug"] = True


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="state-pipelines")
@click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show the traceback of an error.")
def main() -> None:
    """See, judge, change and prove checkpoints and savepoints of Apache Flink, without a Flink cluster.

    Snapshots are named by their directory or `_metadata` file: a local path, or any URL that fsspec reaches.
    """
