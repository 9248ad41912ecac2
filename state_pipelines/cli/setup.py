"""Commands that set up: `init` describes a Flink job for Dagster, `prepare` makes Spark start faster."""

from __future__ import annotations

import json
import re
import time

import click

from state_pipelines.cli.display import format_bytes, make_console
from state_pipelines.cli.options import AS_JSON
from state_pipelines.errors import UsageError
from state_pipelines.operations.jobs.job_files import format_job
from state_pipelines.storage import create_file, resolve

_NAME = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_STDOUT = "-"


@click.command("init")
@click.argument("name")
@click.option(
    "--root", "roots", metavar="DIR", multiple=True, help="A directory of checkpoints or savepoints; repeatable."
)
@click.option("--results", metavar="DIR", help="Directory of new savepoints.")
@click.option(
    "--out",
    metavar="FILE",
    default="defs.yaml",
    show_default=True,
    help="The new file; - is the standard output.",
)
def init_command(name: str, *, roots: tuple[str, ...], results: str | None, out: str) -> None:
    """Write the description of the Flink job NAME for Dagster: a YAML file with a comment for every field.

    Put it below the `defs` of a project of `dg` (docs/dagster.md). A file that exists is not overwritten.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name", hint="Use letters, digits and _, such as orders_v2")
    text = format_job(name, roots, results)
    if out == _STDOUT:
        click.echo(text, nl=False)
        return
    with create_file(resolve(out)) as file:
        file.write(text.encode())
    click.echo(f"wrote {out}")


@click.command("prepare")
@click.option("--again", is_flag=True, help="Make it again even if it exists and fits.")
@AS_JSON
def prepare_command(*, again: bool, as_json: bool) -> None:
    """Make what lets Spark start in half of the time: an archive of the classes that its JVM loads.

    It takes about a minute and 200 MB in the cache directory of the user, ~/.cache/state-pipelines (XDG_CACHE_HOME
    moves it), and belongs to one Java and one version of Spark: run it again after an update of either. Nothing else
    depends on it, and it may be deleted at any time.
    """
    from state_pipelines.spark.session import find_java, locate_class_data, make_class_data

    java = find_java()
    data = locate_class_data(java)
    start = time.monotonic()
    made = again or not data.exists
    if made:
        with make_console(stderr=True).status("recording and archiving the classes of Spark"):
            data = make_class_data(java)
    size, seconds = data.archive.stat().st_size, time.monotonic() - start
    if as_json:
        content = {"java": str(java), "archive": str(data.archive), "bytes": size, "made": made}
        click.echo(json.dumps(content | {"seconds": round(seconds, 1)}))
    elif made:
        click.echo(f"made {data.archive} ({format_bytes(size)}) in {seconds:.0f} s: Spark on {java} starts with it")
    else:
        click.echo(f"{data.archive} ({format_bytes(size)}) is there and fits: Spark on {java} starts with it")
