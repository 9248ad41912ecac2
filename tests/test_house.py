from __future__ import annotations

import ast
import re
import subprocess
import tokenize
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from state_pipelines import spark

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERBS = ("make demo", "make test", "make test-all")
LOCKS = ("requirements.lock", "requirements-build.lock")
FIRST_SCREEN = 40
# Directories in which people and machines keep a checkout; spelt so that this file does not match itself.
MACHINE_PATH = re.compile(rb"(?<![\w.$}>])/(?:hom[e]/\w|roo[t]/|User[s]/\w|wor[k]/|op[t]/\w|tm[p]/\w)")

PACKAGES = ("state_pipelines", "resources", "assets")
# A first line that only says what the reader does not know yet.
CLAUSE = re.compile(r"\s*\"\"\"(?:What|Which|Where|How|Whose|Who|When|That) ")
# Words that the glossary has terms for: batch, task, span, position, subject, location, chunk.
BANNED_NAMES = {
    *("place", "places", "piece", "pieces", "told", "meant", "behind", "standin", "undescribed", "anew", "newtypes"),
    *("joining", "practices", "recognised"),
    *("part", "parts", "family", "families", "form", "forms", "fact", "facts"),
}
# Terms of RocksDB that a banned word is part of.
TERMS = re.compile(r"column_?famil(?:y|ies)", re.IGNORECASE)
# Modules about the parts of a multipart upload.
MULTIPART = (
    "state_pipelines.storage.uploads",
    "state_pipelines.connectors.sinks",
)
# Classes of PySpark's `DataSource`, which are named after their formats. All other sources are Flink's.
DATA_SOURCES = {"FlinkStateSource", "FlinkStateMetadataSource"}
BANNED_PROSE = re.compile(
    r"\b(?:pieces?|told|meant|standin|undescribed|anew|hand(?:s|ed)? (?:on|out)|came of|what (?:became|becomes) of)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
MOST_LINES = 900
"""Lines of code of a module."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def read_pins(lock: str) -> dict[str, set[str]]:
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / lock).read_text(), re.MULTILINE):
        pins.setdefault(canonicalize_name(name), set()).add(version)
    return pins


def read_requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    return [requirement for requirement in map(Requirement, lines) if requirement.name != PROJECT["project"]["name"]]


def list_tracked_files() -> list[Path]:
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this tree is not a clone, or there is no git to list its files")
    return [path for name in listing.split(b"\0") if name and (path := ROOT / name.decode()).is_file()]


@pytest.mark.parametrize("verb", VERBS)
def test_the_first_screen_of_the_readme_shows_the_command(verb: str) -> None:
    screen = (ROOT / "README.md").read_text().splitlines()[:FIRST_SCREEN]
    assert any(line.lstrip(" $").split("#")[0].strip() == verb for line in screen)


@pytest.mark.parametrize("verb", VERBS)
def test_the_command_is_a_verb_of_the_makefile(verb: str) -> None:
    target = verb.removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("requirement", read_requirements(), ids=lambda requirement: requirement.name)
def test_the_lock_has_what_the_project_asks_for(requirement: Requirement) -> None:
    versions = read_pins("requirements.lock").get(canonicalize_name(requirement.name), set())
    assert versions
    assert all(requirement.specifier.contains(version) for version in versions)


@pytest.mark.parametrize("requirement", PROJECT["build-system"]["requires"])
def test_the_lock_has_what_the_build_asks_for(requirement: str) -> None:
    wanted = Requirement(requirement)
    (version,) = read_pins("requirements-build.lock")[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(version)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_of_a_lock_has_hashes(lock: str) -> None:
    blocks = re.split(r"^(?=[\w.-]+==)", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index(lock: str) -> None:
    assert not re.search(r"://|--(index|extra-index|find-links)", (ROOT / lock).read_text())


def test_no_tracked_file_speaks_of_a_machine() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in list_tracked_files()
        if b"\0" not in (content := path.read_bytes())
        for match in MACHINE_PATH.finditer(content)
    }
    assert not found


def list_modules() -> dict[str, Path]:
    """Files of the modules by dotted name; a package is its `__init__`."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@dataclass(frozen=True)
class Syntax:
    """What the tests ask of the syntax tree of a module, which is walked once.

    Attributes:
        imports: what it imports, in functions and for types too: of `from a import b` both `a` and `a.b`.
        names: lines and names that it defines.
        classes: names of all classes.
        public_classes: names of the public classes of the module itself.
        lines: number of lines of code: without blank lines, comments and docstrings.
    """

    imports: list[tuple[str, str]]
    names: list[tuple[int, str]]
    classes: list[str]
    public_classes: list[str]
    lines: int


def read_syntax(text: str) -> Syntax:
    tree = ast.parse(text)
    imports: list[tuple[str, str]] = []
    names: list[tuple[int, str]] = []
    classes: list[str] = []
    docstrings: list[ast.stmt] = []
    code: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                imports += [(each.name, each.name) for each in aliases]
            case ast.ImportFrom(module=str() as module, level=0, names=aliases):
                imports += [(module, f"{module}.{each.name}") for each in aliases]
            case ast.ClassDef(name=name, lineno=line):
                classes.append(name)
                names.append((line, name))
            case (
                ast.FunctionDef(name=name, lineno=line)
                | ast.arg(arg=name, lineno=line)
                | ast.Name(id=name, ctx=ast.Store(), lineno=line)
                | ast.Attribute(attr=name, ctx=ast.Store(), lineno=line)
            ):
                names.append((line, name))
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.alias | ast.ExceptHandler):
            code.update((node.lineno, node.end_lineno or node.lineno))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False):
            docstrings.append(node.body[0])
    public = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    lines = len(code - {line for each in docstrings for line in (each.lineno, each.end_lineno)})
    return Syntax(imports, names, classes, public, lines)


@cache
def syntax_of(path: Path) -> Syntax:
    return read_syntax(path.read_text())


def find_imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Modules that a module imports."""
    for module, name in syntax_of(path).imports:
        found = name if name in modules else module
        if found in modules and modules[found] != path:
            yield found


def test_no_modules_import_each_other() -> None:
    modules = list_modules()
    # Raises CycleError, which names a circle.
    TopologicalSorter({name: set(find_imports(path, modules)) for name, path in modules.items()}).prepare()


def test_a_circle_is_found() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()


def test_modules_are_short() -> None:
    lines = {name: syntax_of(path).lines for name, path in list_modules().items()}
    assert {name: number for name, number in lines.items() if number > MOST_LINES} == {}


def test_a_public_class_has_a_name_of_its_own() -> None:
    names = Counter(name for path in list_modules().values() for name in syntax_of(path).public_classes)
    assert [name for name, number in names.items() if number > 1] == []


def test_no_module_hides_a_public_name() -> None:
    # A module that is imported becomes an attribute of its package, in place of what the package would give by name.
    modules = {path.stem for path in (ROOT / "state_pipelines" / "spark").glob("*.py")}
    assert not modules & set(spark.__all__)


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    clauses = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in list_modules().values()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if CLAUSE.match(line)
    ]
    assert not clauses


def find_banned_words(
    text: str, names: Iterable[tuple[int, str]], allowed: Collection[str] = ()
) -> Iterator[tuple[int, str]]:
    """Lines and words of names, and of strings and comments, that the glossary has other terms for."""
    for line, name in names:
        words = {word.lower() for word in WORD.findall(TERMS.sub("", name))}
        if banned := words & BANNED_NAMES - set(allowed):
            yield line, f"{name}: {', '.join(banned)}"
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from ((token.start[0], match[0]) for match in BANNED_PROSE.finditer(token.string))


def test_names_and_docstrings_use_the_words_of_the_glossary() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for name, path in list_modules().items()
        for line, word in find_banned_words(
            path.read_text(), syntax_of(path).names, ("part", "parts") if name in MULTIPART else ()
        )
    ]
    assert not found


def test_modules_use_the_words_of_the_glossary() -> None:
    words = {name: set(name.split(".")[-1].split("_")) for name in list_modules() if name not in MULTIPART}
    assert not {name for name in words if words[name] & BANNED_NAMES}


def test_only_sources_of_flink_and_spark_are_called_sources() -> None:
    found = {
        each
        for name, path in list_modules().items()
        if not name.startswith("state_pipelines.connectors.")
        for each in syntax_of(path).classes
        if "Source" in WORD.findall(each)
    }
    assert found == DATA_SOURCES


@pytest.mark.parametrize(
    "text",
    [
        "read_piece = 1",
        "def f(place): ...",
        "class PlaceFinder: ...",
        '"What became of it."',
        "# Told later.",
        "state.parts = ()",
    ],
)
def test_a_banned_word_is_found(text: str) -> None:
    assert list(find_banned_words(text, read_syntax(text).names))


def test_a_word_within_another_one_is_not_banned() -> None:
    text = "replaced = placeholder = None  # retold"
    assert not list(find_banned_words(text, read_syntax(text).names))


def test_a_term_of_rocksdb_is_not_banned() -> None:
    text = "class ColumnFamily: ...\ncolumn_families = []"
    assert not list(find_banned_words(text, read_syntax(text).names))
