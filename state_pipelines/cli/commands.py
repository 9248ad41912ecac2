"""The commands, and what they have in common: exit codes, errors and interrupts.

Interrupts (Ctrl-C) and requests to end (SIGTERM) reach a command wherever they arrive.

Exit code 0 is fine, 1 means that the answer is no (incompatible, a check failed), 2 wrong use or unreadable input, 3
that there is no definite answer, as about formats of an unknown version; with --strict also that something could not be
shown; 130 that it was interrupted, 143 that it was asked to end (SIGTERM).
"""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import click

from state_pipelines import __version__
from state_pipelines.errors import IncompatibleError, ProofError, StateError, UnsupportedVersionError
from state_pipelines.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

INTERRUPTED = 130
"""Exit code of a command that was interrupted, as shells expect it of SIGINT."""

TERMINATED = 143
"""Exit code of a command that was asked to end, as by `timeout` and Kubernetes: that of SIGTERM."""

_PAUSE = 0.02
"""Seconds between two looks at whether an interrupt has been lost."""

_LOOKS = 3
"""Checks in a row that find no handler running, after which an interrupt counts as lost and is repeated."""


class Interrupts:
    """The signals that a command has received.

    Attributes:
        received: number of the signal that ends the command; 0 as long as there is none.
    """

    def __init__(self) -> None:
        self.received = 0
        self._main = threading.main_thread().ident
        self._finished = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return TERMINATED if self.received == signal.SIGTERM else INTERRUPTED

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        self.received = self.received or number
        self.watch()
        raise KeyboardInterrupt

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM by the handler of SIGINT, which may cancel Spark jobs, or wait for processes to start."""
        if self.received and self._is_handled():
            # Ignore the second SIGTERM of `timeout`, which sends one to the process and another to its group.
            return
        self.received = number
        handler = signal.getsignal(signal.SIGINT)
        try:
            if callable(handler):
                handler(signal.SIGINT, frame)
                return
        except Exception as error:
            # The handler of Spark fails if its JVM has received the signal too and is gone.
            raise KeyboardInterrupt from error
        finally:
            self.watch()
        raise KeyboardInterrupt

    def watch(self) -> None:
        """Start the thread that repeats lost interrupts."""
        if self._watch is None:
            self._watch = threading.Thread(target=self._repeat, name="repeat lost interrupts", daemon=True)
            self._watch.start()

    def finish(self) -> None:
        """Stop the thread that repeats lost interrupts."""
        self._finished.set()
        if self._watch is not None:
            self._watch.join()

    def _repeat(self) -> None:
        """Send the interrupt to the main thread again whenever it was lost.

        Compiled code that calls back into Python, for instance to import a module or to compile a kernel, may drop the
        exception that the callback raises (`arrow::py::internal::InitPandasStaticData`, which imports pandas, does).
        An interrupt that the main thread is handling, by removing files, is not lost.
        """
        looks = 0
        while not self._finished.wait(_PAUSE):
            looks = 0 if self._is_handled() else looks + 1
            if looks == _LOOKS:
                looks = 0
                # A real signal also ends a blocking call of the main thread; `_thread.interrupt_main` does not.
                signal.pthread_kill(self._main or 0, signal.SIGINT)

    def _is_handled(self) -> bool:
        # Python 3.11 gives (type, value, traceback), later releases the exception.
        found: Any = sys._current_exceptions().get(self._main or 0)
        error = found[1] if isinstance(found, tuple) else found
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            if isinstance(error, KeyboardInterrupt):
                return True
            seen.add(id(error))
            error = error.__cause__ or error.__context__
        return False


@contextmanager
def keep_interrupts() -> Iterator[Interrupts]:
    """Raise `KeyboardInterrupt` in the block on SIGINT and SIGTERM, repeatedly until the block ends; note the signal.

    Outside of the main thread, which alone receives signals, nothing changes; ignored signals stay ignored.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    chosen = {
        signal.SIGINT: (signal.default_int_handler, interrupts.interrupt),
        signal.SIGTERM: (signal.SIG_DFL, interrupts.terminate),
    }
    before = {}
    for number, (default, handler) in chosen.items():
        if signal.getsignal(number) == default:
            before[number] = signal.signal(number, handler)
    unraisable = sys.unraisablehook

    def forget(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            # Python has dropped an interrupt that another handler of SIGINT, such as Spark's, raised: repeat it.
            interrupts.watch()
        else:
            unraisable(lost)

    sys.unraisablehook = forget

    def is_no_effect(record: logging.LogRecord) -> bool:
        # Hide errors that Spark's client logs with tracebacks, and raises too: interrupts, and that its JVM is gone.
        kind = None if record.exc_info is None else record.exc_info[0]
        return kind is None or not (interrupts.received or kind is KeyboardInterrupt)

    logging.getLogger().addFilter(is_no_effect)
    try:
        yield interrupts
    finally:
        interrupts.finish()
        logging.getLogger().removeFilter(is_no_effect)
        sys.unraisablehook = unraisable
        for number, former in before.items():
            signal.signal(number, former)


# Only the module of the called command is imported, since some modules import Spark.
COMMANDS = {
    "inspect": ("inspect", "Show what a snapshot holds."),
    "read": ("read", "Show the rows of one state."),
    "dump": ("read", "Print every entry of a snapshot as JSON lines."),
    "diff": ("diff", "Tell what is different between two snapshots."),
    "check": ("check", "Tell whether state fits new serializers."),
    "migrate": ("migrate", "Write a migrated snapshot and prove it."),
    "history": ("revisions", "List the revisions of a directory."),
    "current": ("revisions", "Tell which revision a snapshot is at."),
    "revision": ("revisions", "Write a new revision file, empty or drafted."),
    "bootstrap": ("bootstrap", "Write a savepoint out of Parquet files."),
    "convert": ("convert", "Write a snapshot in another format, or in another location."),
    "rescale": ("rescale", "Write a snapshot for other parallelism, key groups or operators."),
    "erase": ("erase", "Write a snapshot without some keys, or tell where they are."),
    "retain": ("retain", "Show which snapshots and files can go, and why."),
    "verify": ("verify", "Tell whether snapshots can be restored."),
    "savepoint": ("running_jobs", "Take a savepoint of a running job, which runs on."),
    "status": ("running_jobs", "Show how a running job and its checkpoints are."),
    "rehearse": ("running_jobs", "Try the upgrade of a running job, which runs on."),
    "upgrade": ("running_jobs", "Upgrade a running job, or go back."),
    "sql": ("sql", "Compile SQL scripts to plans, off line."),
    "init": ("setup", "Describe a Flink job for Dagster."),
    "prepare": ("setup", "Make what lets Spark start faster, once."),
    "demo": ("demo", "Run the orders example from end to end."),
}
"""Name of each command, its module, and what it does."""

_NEW_OBJECTS = 100_000
"""New objects after which the garbage collector looks for cycles."""

ANSWER_IS_NO = 1
WRONG_USE = 2
UNDETERMINED = 3


def load_command(name: str) -> click.Command:
    """Import the module of a command; return its `command`, or `<name>_command` from a module of several commands."""
    found = vars(import_module(f"state_pipelines.cli.{COMMANDS[name][0]}"))
    return cast("click.Command", found.get("command") or found[f"{name}_command"])


class CommandGroup(click.Group):
    """The root command: finds commands by name and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, importing its module."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in `--help` without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run a command.

        If the reader of the output closes the pipe (`| head`), the command ends without an error.
        """
        # Commands may create hundreds of thousands of values, none of them in a reference cycle: the garbage collector
        # would search them often and find nothing.
        gc.set_threshold(_NEW_OBJECTS)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names in a snapshot may have characters that the encoding of the terminal lacks.
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
                from state_pipelines.cli.display import show_failed_proof

                show_failed_proof(error.report, as_json=bool(ctx.meta.get("json")))
            # Imported late, because only errors need it.
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
    # Data of an unknown version are not damaged as far as we can see: the result is undetermined.
    return UNDETERMINED if isinstance(error, UnsupportedVersionError) else WRONG_USE


def _invoke(call: Callable[[click.Context], object], ctx: click.Context, interrupts: Interrupts) -> object:
    """Run a command; raise any error after a signal as an interrupt: the signal may have ended other processes."""
    try:
        return call(ctx)
    except click.exceptions.Exit:
        raise
    except Exception as error:
        if interrupts.received:
            raise KeyboardInterrupt from error
        raise


def _show_notes(error: BaseException | None) -> None:
    """Print the notes of an exception (`add_note`), for instance that files could not be removed."""
    from state_pipelines.snapshot.representation import escape_terminal

    for note in getattr(error, "__notes__", ()):
        click.echo(f"note: {escape_terminal(redact(' '.join(note.split())))}", err=True)


def _drop_output() -> None:
    """Discard the rest of the standard output, even what is still buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def set_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Note that tracebacks are wanted; the option is allowed before and after the name of the command."""
    if value:
        ctx.meta["debug"] = True


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="state-pipelines")
@click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show the traceback of an error.")
def main() -> None:
    """See, judge, change and prove checkpoints and savepoints of Apache Flink, without a Flink cluster.

    Snapshots are named by their directory or `_metadata` file: a local path, or any URL that fsspec reaches.
    """
