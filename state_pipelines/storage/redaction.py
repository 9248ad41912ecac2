"""Removal of secrets from texts that people see."""

from __future__ import annotations

import re

# A user with a password; `container@account` of Azure is not one.
_USER_AND_PASSWORD = re.compile(r"(?<=://)[^/\s@:]*:[^/\s@]*@")
_QUERY = re.compile(r"(\w://[^\s?'\"]*)\?[^\s'\"]+")


def redact(text: str) -> str:
    """Replace secrets in the URLs of a text: user and password, and query strings, which may hold signatures."""
    return _QUERY.sub(r"\1?…", _USER_AND_PASSWORD.sub("…@", text))
