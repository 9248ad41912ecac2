"""`prepare`: what makes Spark start faster, made once."""

from __future__ import annotations

import json
import time

import click

from state_pipelines.cli.display import format_bytes, make_console
from state_pipelines.cli.options import AS_JSON


@click.command("prepare")
@click.option("--again", is_flag=True, help="Make it again even if it exists and fits.")
@AS_JSON
def command(*, again: bool, as_json: bool) -> None:
    """Make what lets Spark start in half of the time: an archive of the classes that its JVM loads.

    It takes about a minute and 200 MB in the cache directory of the user, ~/.cache/state-pipelines (XDG_CACHE_HOME
    moves it), and belongs to one Java and one version of Spark: run it again after an update of either. Nothing else
    depends on it, and it may be deleted at any time.
    """
    from state_pipelines.spark.java import find_java, locate_class_data, make_class_data

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
