"""Removal of secrets from texts that people see; errors apply it to all that they say."""

from __future__ import annotations

import re

# Names out of snapshots are in these texts: all of this takes time in proportion to the text. Of a word that is looked
# at for URLs, no character is looked at again by the next URL in it.

_WORD = re.compile(r"\S+")
_AUTHORITY = re.compile(r":/++")
_NOT_OF_A_SCHEME = re.compile(r"[^A-Za-z0-9+.-]")
_LONGEST_SCHEME = 5
"""Characters of the longest scheme that is not treated as all others are."""

_QUERY = re.compile(r"[?#]")

_LOCAL = frozenset({"file", "local"})
"""Schemes whose URLs have neither a user nor a query."""

_AZURE = frozenset({"abfs", "abfss", "az", "wasb", "wasbs"})
# The rules of Azure for names of containers: a user or token with other characters is none.
_CONTAINER = re.compile(r"\$?[a-z0-9][a-z0-9-]*@[A-Za-z0-9.-]+(?::[0-9]{1,5})?")
# In place of the name of a bucket.
_ACCESS_POINT = re.compile(r"arn:aws[a-z-]*:s3[a-z-]*:[^@]*")
_CLOSERS = "'\")]}>,;:."
"""Characters after a URL in a sentence."""

# Options of storages: secret=…, 'aws_session_token': '…'.
_OPTION = re.compile(
    r"((?<!\w)(?=\w*?(?:secret|password|passwd|token|signature|credential|access_?key|account_?key|sas_?key"
    r"|authorization))\w++(?:=|['\"]\s*[:=]\s*)['\"]?)[^\s'\",;&}\]]+",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Replace secrets in a text, rather too much than too little.

    In a URL, which ends at a blank, these are

    * what comes before the last `@`, where the part before the first slash has a colon: a password may have slashes
      and `@`. `http://host:80/a@b` cannot be distinguished from that and loses its host;
    * what comes before an `@` in the part before the first slash, whatever the scheme: a user may be a token. Only
      the container of Azure (`abfss://container@account…`) is shown;
    * the query and the fragment, which may hold signatures.

    An `@` after the first slash is part of a name where the part before that slash has no colon: `s3://bucket/a:b@c`.
    Therefore, a user or token that has a slash itself is shown.

    Elsewhere, secrets are the values of options whose names say so.
    """
    if ":/" in text:
        text = _WORD.sub(_redact_urls, text)
    return _OPTION.sub(r"\1…", text) if "=" in text or ":" in text else text


def _redact_urls(match: re.Match[str]) -> str:
    """Return a text without blanks with the secrets of the URLs in it replaced."""
    word = match[0]
    if ":/" not in word:
        return word
    closers = word[len(word.rstrip(_CLOSERS)) :]
    last = word.rfind("@")
    query: int | None = None
    shown: list[str] = []
    end = 0
    for found in _AUTHORITY.finditer(word):
        begin = found.end()
        if query is not None and query < begin:
            break
        if begin < end:
            # Hidden already.
            continue
        scheme = _NOT_OF_A_SCHEME.split(word[max(0, found.start() - _LONGEST_SCHEME - 1) : found.start()])[-1].lower()
        at = _find_user(scheme, word, begin, last)
        if query is None and (at >= 0 or scheme not in _LOCAL):
            mark = _QUERY.search(word, begin)
            query = len(word) if mark is None else mark.start()
        if at >= 0:
            shown.append(f"{word[end:begin]}…")
            if query is not None and query < at:
                # The `@` may be part of a query, whose rest comes after it.
                return "".join((*shown, "@…", closers))
            end = at
    if query is not None and query + 1 + len(closers) < len(word):
        return "".join((*shown, word[end:query], "?…", closers))
    return "".join((*shown, word[end:]))


def _find_user(scheme: str, word: str, begin: int, last: int) -> int:
    """Return the index of the `@` after the user, password or token of the URL whose authority begins at an index.

    Args:
        scheme: scheme of the URL, in lower case.
        word: a text without blanks.
        begin: index of the first character after the scheme and its slashes.
        last: index of the last `@` of `word`, -1 without one.
    """
    if last < begin:
        return -1
    slash = word.find("/", begin)
    authority = word[begin : len(word) if slash < 0 else slash]
    if (scheme in _AZURE and _CONTAINER.fullmatch(authority)) or _ACCESS_POINT.fullmatch(authority):
        return -1
    if ":" in authority:
        return last
    return -1 if scheme in _LOCAL or "@" not in authority else begin + authority.rindex("@")
