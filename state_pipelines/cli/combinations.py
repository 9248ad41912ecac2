"""Rules on options that contradict each other, or have no effect without another one: both are wrong use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Excludes:
    """An option does not go with others.

    Attributes:
        option: such as `--json`.
        others: options, each of which it does not go with.
        reason: why.
        values: the values of the others that count; all of them if there are none.
    """

    option: str
    others: tuple[str, ...]
    reason: str
    values: tuple[str, ...] = ()

    def check(self, given: Mapping[str, tuple[str, object]]) -> None:
        """Refuse the options of a call: by any of their names, the one that was used and the value."""
        if self.option not in given:
            return
        for other in self.others:
            name, value = given.get(other, ("", None))
            if not name or (self.values and value not in self.values):
                continue
            named = f"{name} {value}" if self.values else name
            raise UsageError(
                f"{given[self.option][0]} does not go with {named}: {self.reason}",
                hint="Leave one of them out",
            )


@dataclass(frozen=True)
class Needs:
    """Options have no effect without another one.

    Attributes:
        options: such as `--apply`.
        others: options or arguments, one of which is needed.
        reason: what the options are about.
    """

    options: tuple[str, ...]
    others: tuple[str, ...]
    reason: str

    def check(self, given: Mapping[str, tuple[str, object]]) -> None:
        """Refuse the options of a call, as `Excludes.check`."""
        if not given.keys().isdisjoint(self.others):
            return
        for option in self.options:
            if option in given:
                name, needed = given[option][0], " or ".join(self.others)
                raise UsageError(
                    f"{name} has no effect without {needed}: {self.reason}", hint=f"Add {needed}, or leave {name} out"
                )


Rule = Excludes | Needs


class RuledCommand(click.Command):
    """A command that checks its rules before anything is opened.

    Attributes:
        rules: in the order in which they are checked.
    """

    def __init__(self, *arguments: Any, rules: Sequence[Rule] = (), **options: Any) -> None:
        """Take rules besides the arguments of a command of click."""
        super().__init__(*arguments, **options)
        self.rules = tuple(rules)

    def invoke(self, ctx: click.Context) -> Any:
        """Check the rules, and run the command.

        Raises:
            UsageError: a rule is broken.
        """
        given = list_given(ctx)
        for rule in self.rules:
            rule.check(given)
        return super().invoke(ctx)


def list_given(ctx: click.Context) -> dict[str, tuple[str, object]]:
    """List the options and arguments of a call, by each of their names: the name to show, and the value."""
    found: dict[str, tuple[str, object]] = {}
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name or "")
        is_given = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if not is_given or value is None or value == ():
            continue
        if isinstance(parameter, click.Argument):
            found[parameter.human_readable_name] = parameter.human_readable_name, value
            continue
        shown = max(parameter.opts, key=len)
        if value is False and parameter.secondary_opts:
            shown = parameter.secondary_opts[0]
        found |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), (shown, value))
    return found
