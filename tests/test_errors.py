from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import StateError, StorageError, Where, at
from state_pipelines.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://token@host/a", "https://…@host/a"),
        ("s3:/key:secret@bucket/a", "s3:/…@bucket/a"),
        ("https://host/a#access_token=abc", "https://host/a?…"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("{'key': 'AKIA', 'secret': 'abc', 'token': 'abc'}", "{'key': 'AKIA', 'secret': '…', 'token': '…'}"),
        ("aws_secret_access_key=abc&session_token=abc", "aws_secret_access_key=…&session_token=…"),
        ("unexpected token: end", "unexpected token: end"),
        ("/data/savepoint-1a2b/_metadata", "/data/savepoint-1a2b/_metadata"),
    ],
)
def test_secrets_are_removed_from_texts(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "secret" * 200_000 + " a: b",
        "a://" * 300_000,
        "a:" * 500_000 + "//",
        "secret'" + " " * 1_000_000,
        "://a:b" * 200_000,
    ],
    ids=["option", "schemes", "colons", "blanks", "users"],
)
def test_long_names_take_time_in_proportion_to_their_length(text: str) -> None:
    assert redact(text) == text
    assert redact(f"{text} password=hunter2 https://host/a?sig=hunter2") == f"{text} password=… https://host/a?…"


@pytest.mark.parametrize(
    "name",
    [
        "secret",
        "password",
        "passwd",
        "token",
        "signature",
        "credential",
        "access_key",
        "accountkey",
        "sas_key",
        "accesskey",
        "account_key",
        "saskey",
        "authorization",
    ],
)
@pytest.mark.parametrize("change", [str.lower, str.upper, lambda name: f"x_{name}_y"])
def test_each_name_of_a_secret_option_is_known(name: str, change: Callable[[str], str]) -> None:
    assert redact(f"{change(name)}=hunter2") == f"{change(name)}=…"
    assert redact(f"'{change(name)}': 'hunter2'") == f"'{change(name)}': '…'"


def test_errors_say_no_secrets() -> None:
    url = "s3://AKIA:hunter2@host/a?signature=hunter2"
    error = StorageError(f"no answer of {url}", where=Where(file=url), hint=f"Look at {url}")
    with pytest.raises(StateError) as caught, at(operator="orders"):
        raise error
    assert "hunter2" not in "".join((str(caught.value), repr(caught.value), caught.value.what, str(error.where.file)))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
