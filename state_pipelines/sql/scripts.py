"""SQL scripts: statements, and which of them a planner runs before it compiles the last one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\"|;|\(|\)|[^\s;()'`\"/-]+|\s+|[-/]", re.DOTALL
)
_SET = re.compile(r"SET\s+'((?:[^']|'')+)'\s*=\s*'((?:[^']|'')*)'", re.IGNORECASE)
_BARE_SET = re.compile(r"SET\s+([\w.-]+)\s*=\s*(\S+)", re.IGNORECASE)
_JAR = re.compile(r"ADD\s+JAR\s+'((?:[^']|'')+)'", re.IGNORECASE)
_BEGIN = re.compile(r"(?:EXECUTE\s+|BEGIN\s+)?STATEMENT\s+SET(?:\s+BEGIN)?\b", re.IGNORECASE)
_COMPILE = re.compile(
    r"COMPILE\s+(?:AND\s+EXECUTE\s+)?PLAN\s+'(?:[^']|'')*'\s+(?:IF\s+NOT\s+EXISTS\s+)?FOR\s+", re.IGNORECASE
)
_DEFINITIONS = ("CREATE", "ALTER", "DROP", "USE", "LOAD", "UNLOAD", "ANALYZE")
_TABLE = re.compile(r"CREATE\s+(?:TEMPORARY\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?", re.IGNORECASE)
_OWN_JOB = re.compile(
    r"(?:CREATE\s+(?:OR\s+REPLACE\s+)?|REPLACE\s+)(?:(?:TEMPORARY|MATERIALIZED)\s+)?TABLE\b", re.IGNORECASE
)
_NAME = re.compile(r"((?:`(?:[^`]|``)+`|\w+)(?:\s*\.\s*(?:`(?:[^`]|``)+`|\w+))*)")
_IDENTIFIER = re.compile(r"`((?:[^`]|``)+)`|(\w+)")
_OPTION = re.compile(r"'((?:[^']|'')+)'\s*=\s*'((?:[^']|'')*)'")


@dataclass(frozen=True)
class Statement:
    """A statement of a SQL script.

    Attributes:
        text: text of the statement, without comments around it and without its semicolon.
        line: line of the script where it begins, from 1.
    """

    text: str
    line: int

    @property
    def word(self) -> str:
        """The first word of the statement, in capitals."""
        return self.text.split(None, 1)[0].upper() if self.text else ""


@dataclass(frozen=True)
class Script:
    """A SQL script that defines one job.

    Attributes:
        settings: options of SET, by key; the last one counts.
        definitions: CREATE, USE and so on, in order.
        inserts: the INSERT, or the INSERTs of a statement set.
        jars: paths that ADD JAR names.
    """

    settings: dict[str, str]
    definitions: tuple[Statement, ...]
    inserts: tuple[Statement, ...]
    jars: tuple[str, ...]


def parse_script(text: str) -> Script:
    """Parse a script: SET, CREATE …, and one INSERT or statement set.

    Raises:
        UsageError: it has no INSERT or several jobs, or a statement that is no part of a job; names the line.
    """
    settings: dict[str, str] = {}
    definitions: list[Statement] = []
    inserts: list[Statement] = []
    jars: list[str] = []
    jobs = 0
    inside = False
    for statement in split_statements(text):
        bare = _COMPILE.sub("", statement.text, count=1) if statement.word == "COMPILE" else statement.text
        current = Statement(bare.strip(), statement.line)
        if begin := _BEGIN.match(current.text):
            inside, jobs = True, jobs + 1
            rest = current.text[begin.end() :]
            first = current.text.find(rest.strip(), begin.end())
            current = Statement(rest.strip(), statement.line + current.text.count("\n", 0, max(first, 0)))
            if not current.text:
                continue
        if inside and current.word == "END":
            inside = False
        elif current.word == "INSERT":
            jobs += 0 if inside else 1
            inserts.append(current)
        elif inside:
            raise _refuse(current, "a statement set holds INSERT statements only")
        elif current.word == "EXECUTE" and re.match(r"EXECUTE\s+INSERT\b", current.text, re.IGNORECASE):
            jobs += 1
            inserts.append(Statement(current.text.split(None, 1)[1], current.line))
        elif setting := _SET.fullmatch(current.text) or _BARE_SET.fullmatch(current.text):
            settings[_unquote(setting[1])] = _unquote(setting[2])
        elif current.word == "RESET":
            settings = _reset(settings, current.text)
        elif jar := _JAR.fullmatch(current.text):
            jars.append(_unquote(jar[1]))
        elif _OWN_JOB.match(current.text) and _is_query(current.text):
            raise _refuse(current, "a table that is defined AS a query starts a job of its own")
        elif current.word in _DEFINITIONS:
            definitions.append(current)
        else:
            raise _refuse(current, f"{current.word} is no part of a job")
    if inside:
        raise UsageError("the statement set of the script has no END")
    if jobs != 1 or not inserts:
        what = "has no INSERT" if not inserts else f"starts {jobs} jobs"
        raise UsageError(
            f"the script {what}, and one plan is that of one job",
            hint="Put several INSERT statements into one job: EXECUTE STATEMENT SET BEGIN …; …; END;",
        )
    return Script(settings, tuple(definitions), tuple(inserts), tuple(jars))


def _is_query(definition: str) -> bool:
    """Return whether a definition is CREATE TABLE … AS: has AS outside of parentheses, not only in computed columns."""
    depth = 0
    for match in _TOKEN.finditer(definition):
        depth += (match[0] == "(") - (match[0] == ")")
        if depth == 0 and match[0].upper() == "AS":
            return True
    return False


def _refuse(statement: Statement, what: str) -> UsageError:
    return UsageError(
        f"line {statement.line} of the script: {what}: {statement.text[:60]!r}",
        hint="A script has SET, CREATE and USE statements, and one INSERT or statement set",
    )


def _reset(settings: dict[str, str], text: str) -> dict[str, str]:
    quoted = re.search(r"'((?:[^']|'')+)'", text)
    return {} if quoted is None else {key: value for key, value in settings.items() if key != _unquote(quoted[1])}


def _unquote(text: str) -> str:
    return text.replace("''", "'")


def split_statements(text: str) -> Iterator[Statement]:
    """Yield the statements between semicolons that are not inside quotes, comments or parentheses.

    Raises:
        UsageError: a quote or a comment does not end; names the line.
    """
    current: list[str] = []
    line = start = 1
    position = depth = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or text.startswith("/*", position) != match[0].startswith("/*"):
            raise UsageError(f"line {line} of the script begins a quote or a comment that does not end")
        token = match[0]
        position = match.end()
        depth += (token == "(") - (token == ")")
        if token == ";" and depth <= 0:
            if statement := "".join(current).strip():
                yield Statement(statement, start)
            current, depth = [], 0
        elif token.startswith(("--", "/*")) and not token.startswith("/*+"):
            current.append(" ")
        else:
            if token.strip() and not "".join(current).strip():
                current, start = [], line
            current.append(token)
        line += token.count("\n")
    if statement := "".join(current).strip():
        yield Statement(statement, start)


def find_table_name(definition: str) -> str | None:
    """Return the last name of the table that a CREATE TABLE defines; None for other statements."""
    head = _TABLE.match(definition)
    name = _NAME.match(definition, head.end()) if head else None
    if name is None:
        return None
    quoted, plain = _IDENTIFIER.findall(name[1])[-1]
    return str(quoted.replace("``", "`") or plain)


def find_options(definition: str) -> dict[str, str]:
    """Return the options in the WITH clause of a CREATE TABLE; empty without one."""
    span = _find_with(definition)
    if span is None:
        return {}
    found = _OPTION.findall(definition[span[0] : span[1]])
    return {_unquote(key): _unquote(value) for key, value in found}


def replace_options(definition: str, options: dict[str, str]) -> str:
    """Return the text of a CREATE TABLE with other options in its WITH clause."""
    text = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    span = _find_with(definition)
    if span is None:
        return f"{definition} WITH ({text})"
    return f"{definition[: span[0]]}({text}){definition[span[1] :]}"


def _find_with(definition: str) -> tuple[int, int] | None:
    """Return (start, end) of the parentheses after the WITH of a CREATE TABLE in its text; None without WITH."""
    position = depth = 0
    with_seen = False
    start = -1
    while position < len(definition):
        match = _TOKEN.match(definition, position)
        if match is None:
            return None
        token = match[0]
        if depth == 0 and token.upper() == "WITH":
            with_seen = True
        elif depth == 0 and with_seen and token == "(":
            start = position
        elif token.strip() and depth == 0 and start < 0 and token.upper() != "WITH":
            with_seen = False
        depth += (token == "(") - (token == ")")
        position = match.end()
        if start >= 0 and depth == 0 and token == ")":
            return start, position
    return None
