"""Removal of secrets from texts that people see; errors apply it to all that they say."""

from __future__ import annotations

import re

# Names out of snapshots are in these texts: each expression takes time in proportion to the text, because none begins
# again inside what it has looked at.

# A user with a password, after any number of slashes; `container@account` of Azure is not one.
_USER_AND_PASSWORD = re.compile(r"(?<=:/)(/*+)[^/\s@:]*:[^/\s@]*@")
# A token in place of a user.
_TOKEN = re.compile(r"(?<=http://|ttps://)[^/\s@]+@")
_QUERY = re.compile(r"(://[^\s?#'\":]*(?::(?!//)[^\s?#'\":]*)*)[?#][^\s'\"]+")
# Options of storages: secret=…, 'aws_session_token': '…'.
_OPTION = re.compile(
    r"((?<!\w)(?=\w*?(?:secret|password|passwd|token|signature|credential|access_?key|account_?key|sas_?key"
    r"|authorization))\w++(?:=|['\"]\s*[:=]\s*)['\"]?)[^\s'\",;&}\]]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Replace secrets in a text.

    In URLs these are user and password, and query strings and fragments, which may hold signatures; elsewhere the
    values of options whose names say that they are secret.
    """
    if ":/" in text:
        text = _QUERY.sub(r"\1?…", _TOKEN.sub("…@", _USER_AND_PASSWORD.sub(r"\1…@", text)))
    return _OPTION.sub(r"\1…", text) if "=" in text or ":" in text else text
