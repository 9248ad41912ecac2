"""`init`: describe a Flink job for Dagster."""

from __future__ import annotations

import re

import click

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
def command(name: str, *, roots: tuple[str, ...], results: str | None, out: str) -> None:
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
