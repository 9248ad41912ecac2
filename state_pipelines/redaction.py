"""Removal of secrets from texts that people see; errors apply it to all that they say."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

# The texts contain names from snapshots, which anybody may have chosen: redaction must take time in proportion to the
# text. Where a word has several URLs, no character is examined again for the next one.

_WORD = re.compile(r"\S+")
_AUTHORITY = re.compile(r":/++")
_NOT_OF_A_SCHEME = re.compile(r"[^A-Za-z0-9+.-]")
_LONGEST_SCHEME = 5
"""Characters of the longest scheme that is not treated as all others are."""

_QUERY = re.compile(r"[?#]")

_LOCAL = frozenset({"file", "local"})
"""Schemes whose URLs have neither a user nor a query."""

_AZURE = frozenset({"abfs", "abfss", "az", "wasb", "wasbs"})
# Azure's rules for container names. Text before the `@` that breaks them is hidden as a user or token.
_CONTAINER = re.compile(r"\$?[a-z0-9][a-z0-9-]*@[A-Za-z0-9.-]+(?::[0-9]{1,5})?")
# An ARN in place of a bucket name: its colons do not separate a user and a password.
_ACCESS_POINT = re.compile(r"arn:aws[a-z-]*:s3[a-z-]*:[^@]*")
_CLOSERS = "'\")]}>,;:."
"""Characters after a URL in a sentence."""

_NAME = r"[\w.-]"
# Names of options whose values are secrets; abbreviations only as whole words of a name.
_SECRET_NAME = (
    r"(?:secret|password|passwd|passphrase|token|signature|credential|authorization|connection_?string"
    r"|(?:access|account|api|private|sas)[_.-]?key|(?<![^\W_])(?:sas|sig|pwd)(?![^\W_]))"
)
_SECRET_OPTION = re.compile(_SECRET_NAME, re.IGNORECASE)
# Prefixes of the options for storages of Flink and Hadoop. Before a colon, a name without such a prefix may be the name
# of a state or operator: `token: may be missing`.
_CONFIGURATION = r"(?:aws|azure|cos|dfs|flink|fs|gs|hadoop|hive|oss|presto|s3[anp]?|security|spark)\."
_AUTHENTICATION = r"(?:Basic|Bearer|Digest|Negotiate|SharedKey|Token)"
# Matches secret=…, 'aws_session_token': '…', "secret": "…" in a text that is quoted itself, s3.access.key: …,
# Authorization: Bearer …. Every name is looked at once, and what was replaced is not looked at again.
_OPTION = re.compile(
    rf"(?<!{_NAME})(?:"
    rf"(?P<option>(?={_NAME}*?{_SECRET_NAME}){_NAME}++(?:=|\\*+['\"]\s*+[:=]\s*+)(?:b(?=['\"]))?\\*+)"
    rf"|(?P<setting>(?={_CONFIGURATION}{_NAME}*?{_SECRET_NAME}){_NAME}++\s?:\s*+)"
    rf"|(?P<header>(?={_NAME}*?authorization){_NAME}++\s?:\s?(?={_AUTHENTICATION}\s))"
    rf")(?:(?P<single>')(?:[^'\\]|\\.)*+|(?P<double>\")(?:[^\"\\]|\\.)*+"
    rf"|(?:{_AUTHENTICATION}\s++)?[^\s'\",;&}}\]]++)",
    re.IGNORECASE | re.DOTALL,
)
_SHOWN = r"\g<option>\g<setting>\g<header>\g<single>\g<double>…"

# Words before a strong name (such as `password`) that make it the name of something else than a secret: `state
# password: 3 entries`.
_NAMED_BEFORE = "".join(
    rf"(?<!{word} )" for word in ("class", "column", "field", "operator", "property", "state", "type", "unexpected")
)
_PLAIN = r"[\w-]"
_STRONG_NAME = (
    r"(?:password|passwd|passphrase|connection_?string|secret[_-]?(?:access[_-]?)?key|client[_-]?secret|aws[_-]secret"
    r"|(?:access|account|api|private|sas)[_-]?key(?![_-]?id)"
    r"|(?:access|auth|bearer|id|oauth|refresh|sas|security|session|vault)[_-]?token|x-[\w-]*(?:token|authorization|secret))"
)
# These names are also ordinary words in messages, so only values that do not look like words are hidden.
_WEAK_NAME = r"(?:authorization|credentials?|pwd|sas|secret|signature|token)"
_NO_WORD = r"(?=[^\s'\",;&}\]]{6})(?=[^\s'\",;&}\]0-9/+=]*[0-9/+=])"
# Matches password: …, aws_secret_access_key = …, secret: …, --token …
_NAMED = re.compile(
    rf"(?<![\w.-]){_NAMED_BEFORE}(?:"
    rf"(?P<strong>(?={_PLAIN}*?{_STRONG_NAME}){_PLAIN}++(?:\s?:\s++|\s?=\s?))"
    rf"|(?P<weak>{_WEAK_NAME}(?:\s?:\s++|\s?=\s?)){_NO_WORD}"
    rf"|(?P<argument>--(?={_PLAIN}*?{_SECRET_NAME}){_PLAIN}++[ =])(?!-)"
    rf")(?:(?P<single>')(?:[^'\\]|\\.)*+|(?P<double>\")(?:[^\"\\]|\\.)*+|[^\s'\",;&}}\]]++)",
    re.IGNORECASE | re.DOTALL,
)
_SHOWN_NAMED = r"\g<strong>\g<weak>\g<argument>\g<single>\g<double>…"
# The whole rest of the line is hidden: the names in a cookie do not say which values are secret.
_COOKIE = re.compile(r"(?<![\w.-])((?:set-)?cookie\s?:\s)(?!…)[^\r\n'\"]++", re.IGNORECASE)
_BEARER = re.compile(r"(?<!\w)(Bearer\s)\s*+[\w.~+/=-]{8,}+", re.IGNORECASE)
# Matches elements of XML such as <SecretAccessKey>…</SecretAccessKey>.
_ELEMENT = re.compile(rf"(<(?=[\w:.-]*?{_SECRET_NAME})[\w:.-]++>)[^<]++(?=</)", re.IGNORECASE)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*+-----(?<=PRIVATE KEY-----)(?:(?!-----END).)*+(?:-----END[^-]*+-----)?", re.DOTALL
)
_ENCODED = re.compile(r"%(?:25)*3A(?:%(?:25)*2F)+", re.IGNORECASE)
_ENCODINGS = 4
"""Number of times that a word is percent-decoded: a URL inside other URLs may be encoded several times."""


# Errors that are raised and caught for every value have the same few texts, and locations the same few files.
@lru_cache(maxsize=128)
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

    Elsewhere, secrets are the values of options, headers, elements of XML and arguments whose names say so, tokens
    after `Bearer`, and private keys in PEM form. URLs that are percent-encoded are decoded where they hold a secret.

    Args:
        text: text for people; a path or URL that may have blanks is redacted by `redact_path` first.
    """
    if "-----BEGIN" in text:
        text = _PRIVATE_KEY.sub("…", text)
    if ":/" in text or "%" in text:
        text = _WORD.sub(lambda match: _redact_urls(_decode(match[0])), text)
    return _redact_options(text)


@lru_cache(maxsize=1024)
def redact_path(path: str) -> str:
    """Replace secrets in a path or URL as `redact` does; blanks do not end it, even in a password."""
    return _redact_options(_redact_urls(path))


def is_secret_name(name: str) -> bool:
    """Return whether the value of an option of this name is a secret."""
    return _SECRET_OPTION.search(name) is not None


def _redact_options(text: str) -> str:
    if "=" in text or ":" in text:
        text = _COOKIE.sub(r"\1…", _OPTION.sub(_SHOWN, text))
    if "=" in text or ":" in text or "--" in text:
        text = _NAMED.sub(_SHOWN_NAMED, text)
    if "<" in text:
        text = _ELEMENT.sub(r"\1…", text)
    return _BEARER.sub(r"\1…", text)


def _decode(word: str) -> str:
    """Return a word as it is, or with percent-encoded URLs decoded where they hold a secret."""
    if "%" not in word or _ENCODED.search(word) is None:
        return word
    decoded = word
    for _ in range(_ENCODINGS):
        decoded = unquote(decoded)
    return word if redact_path(decoded) == decoded else decoded


def _redact_urls(word: str) -> str:
    """Return a text, read as one word even if it has blanks, with the secrets of its URLs replaced."""
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
            # This URL is inside of text that is hidden already.
            continue
        scheme = _NOT_OF_A_SCHEME.split(word[max(0, found.start() - _LONGEST_SCHEME - 1) : found.start()])[-1].lower()
        at = _find_user(scheme, word, begin, last)
        if query is None and (at >= 0 or scheme not in _LOCAL):
            mark = _QUERY.search(word, begin)
            query = len(word) if mark is None else mark.start()
        if at >= 0:
            shown.append(f"{word[end:begin]}…")
            if query is not None and query < at:
                # A `?` or `#` is before the `@`, so the text after the `@` may be the rest of a query, and is hidden
                # too.
                return "".join((*shown, "@…", closers))
            end = at
    if query is not None and query + 1 + len(closers) < len(word):
        return "".join((*shown, word[end:query], "?…", closers))
    return "".join((*shown, word[end:]))


def _find_user(scheme: str, word: str, begin: int, last: int) -> int:
    """Return the index of the `@` that ends the user, password or token of a URL; -1 if the URL has none.

    Args:
        scheme: scheme of the URL, in lower case.
        word: the text that contains the URL.
        begin: index of the first character of its authority, after the scheme and its slashes.
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
