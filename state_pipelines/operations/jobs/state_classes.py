"""Classes of the states of a job that the given class files have, and those that are assumed to be unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClassStatus(StrEnum):
    """Description of the types of a state by class files."""

    FOUND = "class found"
    ASSUMED = "assumed unchanged"
    GIVEN = "given by --type or --avro"
    NOT_DESCRIBED = "not described by class files"


@dataclass(frozen=True)
class StateClasses:
    """The classes of one state, or of the keys of an operator.

    Attributes:
        operator: label of the operator.
        state: name of the state; empty of keys.
        found: classes among the given ones.
        assumed: classes that are not, each with the classes of its simple name that are.
        is_given: the type of the state is given in another way.
    """

    operator: str
    state: str
    found: tuple[str, ...] = ()
    assumed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_given: bool = False

    @property
    def status(self) -> ClassStatus:
        """The status as a whole: one class that is assumed makes it assumed."""
        if self.is_given:
            return ClassStatus.GIVEN
        if self.assumed:
            return ClassStatus.ASSUMED
        return ClassStatus.FOUND if self.found else ClassStatus.NOT_DESCRIBED

    @property
    def title(self) -> str:
        """Operator and state, such as `orders/order` or `orders/key`, with the classes that were found."""
        classes = f" ({', '.join(self.found)})" if self.status is ClassStatus.FOUND else ""
        return f"{self.operator}/{self.state or 'key'}{classes}"

    def to_json(self) -> dict[str, object]:
        """As an object for `json.dumps`."""
        return {
            "operator": self.operator,
            "state": self.state or None,
            "status": str(self.status),
            "found": list(self.found),
            "assumed": [name for name, _ in self.assumed],
        }
