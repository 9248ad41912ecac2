"""Secrets among storage options, removed from what clients say: they quote endpoints and hosts without a name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from state_pipelines.redaction import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHORTEST = 6
"""Characters of the shortest text that is hidden; shorter ones are found in too many words."""

_FRAGMENT = re.compile(r"[^\s;,:@/?&=\"'<>\\]+")
# An address without a user, a query or a blank: people need it to see which server does not answer.
_ADDRESS = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://)?(?:[\w.-]+|\[[0-9a-f:.]+\])(?P<port>:[0-9]{1,5})?(?P<path>/[\w./-]*)?", re.IGNORECASE
)
_ADDRESS_NAME = re.compile(r"url|uri|endpoint|host|proxy|proxies", re.IGNORECASE)
_AUTHENTICATION_NAME = re.compile(r"(?<![^\W_])(?:auth|cookies?|headers?)(?![^\W_])", re.IGNORECASE)
_CONNECTION_NAME = re.compile(r"connection_?string", re.IGNORECASE)
# Ways of authentication of gcsfs (`GCSFileSystem.token`), which are no tokens, and names of files with credentials.
_NO_TOKEN = re.compile(r"anon|browser|cache|cloud|google_default|.*\.json", re.IGNORECASE)
# Fields of connection strings of Azure that are no secrets where they look like what they should be.
_PLAIN_FIELD = re.compile(
    r"(?:AccountName=[a-z0-9]{3,24}|DefaultEndpointsProtocol=https?|EndpointSuffix=[a-z0-9.-]+)", re.IGNORECASE
)


_known: set[str] = set()


def remember_secrets(options: Mapping[str, Any]) -> None:
    """Hide the secrets of the options of a file system in all texts of clients from now on, in this process."""
    _known.update(_find_secrets(options, is_secret=False, name=""))


def hide_option_values(text: str, options: Mapping[str, Any] | None = None) -> str:
    """Replace the secrets of storage options in a text of a client, in any case of letters.

    Secrets are the values of options whose names say so, connection strings, and addresses that have more than a host
    and a port; likewise their fragments between blanks and separators.

    Args:
        text: what a client says.
        options: options of the file system, besides those that are remembered.
    """
    secrets = _known.union(_find_secrets(options or {}, is_secret=False, name=""))
    # Clients may quote them as URLs have them.
    found = {each for secret in secrets if len(secret) >= _SHORTEST for each in (secret, quote(secret, safe=""))}
    if not found:
        return text
    pattern = "|".join(re.escape(each) for each in sorted(found, key=len, reverse=True))
    return re.sub(pattern, "…", text, flags=re.IGNORECASE)


def _find_secrets(value: object, *, is_secret: bool, name: str) -> Iterator[str]:
    """Find the secret texts in the value of an option, at any depth."""
    if isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _find_secrets(each, is_secret=is_secret or _is_secret(str(inner)), name=str(inner))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _find_secrets(each, is_secret=is_secret, name=name)
    elif isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode(errors="replace")
        if _CONNECTION_NAME.fullmatch(name):
            yield from _list_secret_fields(text)
        elif is_secret:
            if _NO_TOKEN.fullmatch(text) is None:
                yield from _split(text)
        elif _ADDRESS_NAME.search(name) or "://" in text:
            yield from _list_secret_addresses(text)


def _is_secret(name: str) -> bool:
    return is_secret_name(name) or _AUTHENTICATION_NAME.search(name) is not None


def _list_secret_fields(text: str) -> Iterator[str]:
    for field in text.split(";"):
        name, separator, value = field.partition("=")
        if not separator:
            yield from _split(field)
        elif name.strip().endswith("Endpoint"):
            yield from _list_secret_addresses(value)
        elif _PLAIN_FIELD.fullmatch(field) is None:
            yield from _split(value)


def _list_secret_addresses(text: str) -> Iterator[str]:
    plain = _ADDRESS.fullmatch(text)
    if plain and ("://" in text or plain["port"] or "." in text or text == "localhost"):
        return
    yield text
    # A password may have the marks of a query; without a user before it, the server itself may be shown.
    user, at, server = text.rpartition("@")
    address, *query = re.split(r"[?#]", server, maxsplit=1)
    is_plain = _ADDRESS.fullmatch(address) is not None and bool(at or query)
    for each in (user, *query, *(() if is_plain else (address,))):
        yield from _split(each)


def _split(text: str) -> Iterator[str]:
    yield text
    yield from _FRAGMENT.findall(text)
