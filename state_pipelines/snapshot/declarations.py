"""Declarations: information about a snapshot that its bytes do not hold and its user knows.

Each kind of declaration is one field of `Declarations`, one entry of `KINDS` and one parser of its texts. From `KINDS`
come the option of every command and the option of the Spark data sources; `dagster.FlinkJob` has a field for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from state_pipelines.codecs.layout import check_layout, names_nested
from state_pipelines.codecs.messages import MessageTypes, compile_proto
from state_pipelines.connectors.registry import list_codecs
from state_pipelines.errors import UsageError, at
from state_pipelines.javaclasses import load_field_lists
from state_pipelines.metadata import find_operator_id, format_operator_id
from state_pipelines.serializers.python_types import PythonDeclaration, parse_python_declaration
from state_pipelines.serializers.registry import is_registered
from state_pipelines.serializers.snapshot_classes import DeclaredSerializer, parse_declaration
from state_pipelines.serializers.text import parse
from state_pipelines.sql.compiled_plans import Plan, load_plan
from state_pipelines.sql.node_states import list_operators
from state_pipelines.sql.planner import compile_script
from state_pipelines.storage import read_file, resolve
from state_pipelines.storage.documents import MOST_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.serializers.tree import Serializer


@dataclass(frozen=True)
class Declarations:
    """Everything that a user declares about one snapshot; empty by default.

    Fields that are mappings are about operators: by uid or 32-digit operator id.

    Attributes:
        uids: operator uids, to name the operators of snapshots that store only their hashes (before Flink 2.0).
        classes: fields of classes that the snapshot does not describe: those that Kryo serializes, and subclasses of
            POJOs in snapshots of the heap backend.
        key_serializers: key serializer of each operator, for changelog state without a materialized base.
        connectors: the connector that wrote the list states of each operator, where several could have.
        python_types: types of the states of Python functions (PyFlink) of each operator, by name of the state.
        serializers: serializer snapshot classes that cannot be read otherwise, and classes with a Kryo serializer of
            their own, with the layout of their data.
        protos: descriptor sets of Protobuf messages that Kryo values hold (chill's `ProtobufSerializer`).
        thrifts: Thrift files of structs that Kryo values hold (chill's `TBaseSerializer`).
        plans: compiled plans of SQL jobs, which name the operators and the columns of their rows.
        texts: the texts that were parsed, by name of the kind; empty of declarations that were not parsed.
    """

    uids: tuple[str, ...] = ()
    classes: FieldLists | None = None
    key_serializers: Mapping[str, Serializer] = field(default_factory=dict)
    connectors: Mapping[str, str] = field(default_factory=dict)
    python_types: Mapping[str, Mapping[str, PythonDeclaration]] = field(default_factory=dict)
    serializers: tuple[DeclaredSerializer, ...] = ()
    protos: tuple[bytes, ...] = ()
    thrifts: tuple[str, ...] = ()
    plans: tuple[Plan, ...] = ()
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    @property
    def messages(self) -> MessageTypes | None:
        """Declared Protobuf and Thrift messages, and layouts of Kryo serializers; None if nothing is declared."""
        # All declared layouts are given to Kryo as well, because only a snapshot shows whether a declared class is a
        # serializer snapshot or a class that Kryo writes.
        layouts = tuple(
            (each.snapshot_class, each.layout)
            for each in self.serializers
            if not each.body and not names_nested(each.layout)
        )
        if not (self.protos or self.thrifts or layouts):
            return None
        return MessageTypes(self.protos, self.thrifts, layouts)

    def of_operator(self, old: bytes, new: bytes) -> Declarations:
        """Return only the declarations about the operator with the id `old`, as declarations about the id `new`."""
        selected: dict[str, Any] = {}
        for name, mapping in self._per_operator():
            values = [value for operator, value in mapping.items() if find_operator_id(operator) == old]
            selected[name] = {format_operator_id(new): value for value in values}
        return Declarations(**selected)

    def of_all_operators(self) -> Declarations:
        """Return the declarations that are not about a single operator: classes, serializers, messages, plans, uids."""
        empty: dict[str, Any] = {name: {} for name, _ in self._per_operator()}
        return replace(self, texts={}, **empty)

    def merge(self, *others: Declarations) -> Declarations:
        """Return these declarations together with the uids and the declarations about single operators of `others`."""
        every = (self, *others)
        merged: dict[str, Any] = {"uids": tuple(dict.fromkeys(uid for each in every for uid in each.uids))}
        for each in every:
            for name, mapping in each._per_operator():
                merged[name] = {**merged.get(name, {}), **mapping}
        return replace(self, **merged)

    def _per_operator(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name in (each.name for each in fields(self) if each.name != "texts"):
            if isinstance(value := getattr(self, name), Mapping):
                yield name, value


@dataclass(frozen=True)
class DeclarationKind:
    """A kind of declarations, which users give as texts.

    Attributes:
        name: name of the field of `Declarations`.
        flag: option of the command line, which takes one text and can be repeated.
        metavar: format of a text, such as `OPERATOR=TYPE`.
        help: sentence for `--help`.
        parse: parses the texts to the value of the field.
        separator: separator of texts in Spark options and environment variables, where all are one string.
    """

    name: str
    flag: str
    metavar: str
    help: str
    parse: Callable[[Iterable[str]], Any]
    separator: str = ";"

    @property
    def spark_option(self) -> str:
        """Name of the option of the Spark data sources, such as `keySerializers`."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def variable(self) -> str:
        """Name of the environment variable of the deployment, such as `STATE_PIPELINES_KEY_SERIALIZERS`."""
        return f"STATE_PIPELINES_{self.name.upper()}"

    def split(self, text: str) -> tuple[str, ...]:
        """Split the value of a Spark option or environment variable into texts."""
        return tuple(stripped for each in text.split(self.separator) if (stripped := each.strip()))


def declare(texts: Mapping[str, Iterable[str]]) -> Declarations:
    """Parse the texts of every kind, by name of the kind.

    Raises:
        UsageError: a text does not have the form of its kind.
        StateError: a file that a text names cannot be read.
    """
    stated = {kind: given for kind in KINDS if (given := tuple(texts.get(kind.name, ())))}
    parsed: dict[str, Any] = {kind.name: kind.parse(given) for kind, given in stated.items()}
    return Declarations(**parsed, texts={kind.name: given for kind, given in stated.items()})


def parse_key_serializers(texts: Iterable[str]) -> dict[str, Serializer]:
    """Parse `OPERATOR=TYPE` texts, with types as `inspect` prints them.

    Raises:
        UsageError: a text is not `OPERATOR=TYPE`, or the type is not known.
    """
    return {operator: parse(described) for operator, described in _split(texts, "OPERATOR=TYPE", "orders=String")}


def parse_connectors(texts: Iterable[str]) -> dict[str, str]:
    """Parse `OPERATOR=NAME` texts, with names of connectors as `inspect` prints them.

    Raises:
        UsageError: a text is not `OPERATOR=NAME`, or names a connector that is not known.
    """
    chosen = dict(_split(texts, "OPERATOR=NAME", "order-source=kafka"))
    known = sorted({codec.connector for codec in list_codecs()})
    for name in chosen.values():
        if name not in known:
            raise UsageError(f"there is no connector {name}", hint=f"There are {', '.join(known)}")
    return chosen


def parse_uids(texts: Iterable[str]) -> tuple[str, ...]:
    """Check the given uids, and return them unchanged.

    Raises:
        UsageError: a uid is empty, or begins or ends with a blank, which no uid does.
    """
    uids = tuple(texts)
    for uid in uids:
        if not uid.strip() or uid != uid.strip():
            raise UsageError(f"{uid!r} is no uid", hint="Write the uid as the job sets it (`.uid(…)`)")
    return uids


def parse_protos(texts: Iterable[str]) -> tuple[bytes, ...]:
    """Read descriptor sets of Protobuf; `.proto` files are compiled by the `protoc` on the PATH.

    Raises:
        UsageError: a file is no descriptor set, or there is no `protoc`, or it fails.
        MissingFileError: there is no such file.
    """
    found = []
    for text in texts:
        with at(file=text):
            raw = read_file(resolve(text), most=MOST_TEXT)
            if text.endswith(".proto"):
                raw = compile_proto(text)
            MessageTypes(protobuf=(raw,)).check()
        found.append(raw)
    return tuple(found)


def parse_thrifts(texts: Iterable[str]) -> tuple[str, ...]:
    """Read Thrift files.

    Raises:
        UsageError: a file is not one of Thrift.
        MissingFileError: there is no such file.
    """
    found = []
    for text in texts:
        with at(file=text):
            try:
                content = read_file(resolve(text), most=MOST_TEXT).decode()
            except UnicodeDecodeError:
                raise UsageError("the file is not text, so it is no Thrift file") from None
            MessageTypes(thrift=(content,)).check()
        found.append(content)
    return tuple(found)


def parse_python_types(texts: Iterable[str]) -> dict[str, dict[str, PythonDeclaration]]:
    """Parse `OPERATOR.STATE=TYPE` texts, and YAML files of types by operator and state.

    The last dot before `=` separates operator and state; in a file both may hold dots.

    Raises:
        UsageError: a text has another form, or a type is not one of PyFlink.
        MissingFileError: there is no such file.
    """
    found: dict[str, dict[str, PythonDeclaration]] = {}
    for text in texts:
        if "=" not in text:
            for operator, types in _read_python_types(text).items():
                found.setdefault(operator, {}).update(types)
            continue
        ((name, described),) = _split([text], _PYTHON_SYNTAX, _PYTHON_EXAMPLE)
        operator, dot, state = name.rpartition(".")
        if not dot or not operator or not state:
            raise UsageError(f"{text!r} does not have the form {_PYTHON_SYNTAX}", hint=f"Such as {_PYTHON_EXAMPLE}")
        found.setdefault(operator, {})[state] = parse_python_declaration(described)
    return found


def _read_python_types(path: str) -> dict[str, dict[str, PythonDeclaration]]:
    import yaml  # a large package; few give files of types

    from state_pipelines.storage.documents import parse_yaml

    hint = "Write operators, below each its states, and after each its type, such as {py-op: {typed: 'ROW<n BIGINT>'}}"
    with at(file=path):
        try:
            content = parse_yaml(read_file(resolve(path), most=MOST_TEXT).decode())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"the file is not YAML: {error}", hint=hint) from None
        if not isinstance(content, dict) or not all(isinstance(types, dict) for types in content.values()):
            raise UsageError("the file does not hold types by operator and state", hint=hint)
        return {
            str(operator): {str(state): parse_python_declaration(str(text)) for state, text in types.items()}
            for operator, types in content.items()
        }


def parse_plans(texts: Iterable[str]) -> tuple[Plan, ...]:
    """Read compiled plans of SQL jobs, and compile SQL scripts with the jars among the texts.

    Errors are those of `load_plan` and `compile_script`.
    """
    given = tuple(texts)
    jars = [each for each in given if each.endswith(_JAR)]
    found = []
    for text in (each for each in given if not each.endswith(_JAR)):
        plan = compile_script(text, jars=jars).plan if text.endswith(".sql") else load_plan(text)
        with at(file=text):
            # This only checks the plan: the error of a damaged node then names the file.
            list_operators(plan)
        found.append(plan)
    return tuple(found)


_JAR = ".jar"
_PYTHON_SYNTAX = "OPERATOR.STATE=TYPE"
_PYTHON_EXAMPLE = "py-op.typed='ROW<n BIGINT, s STRING>'"


def parse_serializers(texts: Iterable[str]) -> tuple[DeclaredSerializer, ...]:
    """Parse `CLASS=LAYOUT` and `CLASS(BODY)=LAYOUT` texts (see `serializers.snapshot_classes`, `codecs.layout`).

    Raises:
        UsageError: a text has another format, or its class is declared twice or needs no declaration.
    """
    found: dict[str, DeclaredSerializer] = {}
    for text in texts:
        declared = parse_declaration(text)
        name = declared.snapshot_class
        if found.setdefault(name, declared) != declared:
            raise UsageError(f"the snapshot class {name} is declared twice, with different layouts")
        if is_registered(name):
            raise UsageError(f"the snapshot class {name} has a reader already", hint="Leave its declaration out")
        check_layout(declared)
    return tuple(found.values())


KINDS = (
    DeclarationKind(
        "uids",
        "--uid",
        "NAME",
        "A uid, to name an operator that is stored by its hash.",
        parse_uids,
        separator=",",
    ),
    DeclarationKind(
        "classes",
        "--classes",
        "PATH",
        "Classes that the snapshot does not describe (Kryo, POJO subclasses): a jar, a directory, a class file or a "
        "file of field lists.",
        load_field_lists,
    ),
    DeclarationKind(
        "key_serializers",
        "--key-serializer",
        "OPERATOR=TYPE",
        "The type of an operator's keys, where changelog state does not store it.",
        parse_key_serializers,
    ),
    DeclarationKind(
        "connectors",
        "--connector",
        "OPERATOR=NAME",
        "Which connector wrote an operator's list states, where several could have.",
        parse_connectors,
    ),
    DeclarationKind(
        "python_types",
        "--python-types",
        "OPERATOR.STATE=TYPE|FILE",
        "The type of a state of a Python function (PyFlink), such as 'ROW<n BIGINT, s STRING>', "
        "'ListState<STRING>' or PyFlink's Types; or a YAML file of types by operator and state.",
        parse_python_types,
    ),
    DeclarationKind(
        "serializers",
        "--serializer",
        "CLASS=LAYOUT",
        "What the serializer of a snapshot class that nothing reads writes, or the Kryo serializer of a class, such as "
        "'com.acme.Money$Snap=Struct(currency: utf, cents: i64)'.",
        parse_serializers,
    ),
    DeclarationKind(
        "protos",
        "--proto",
        "FILE",
        "Protobuf messages inside Kryo: a descriptor set (protoc --include_imports --descriptor_set_out) or a .proto "
        "file.",
        parse_protos,
    ),
    DeclarationKind(
        "thrifts",
        "--thrift",
        "FILE",
        "Thrift structs inside Kryo: a .thrift file.",
        parse_thrifts,
    ),
    DeclarationKind(
        "plans",
        "--plan",
        "FILE",
        "The compiled plan of the SQL job that wrote the snapshot (COMPILE PLAN), or its script (.sql), to name "
        "operators and columns; a jar (.jar) has functions of the script.",
        parse_plans,
    ),
)
"""Every kind of declaration, in the order of `--help`."""


def _split(texts: Iterable[str], syntax: str, example: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        operator, _, value = text.partition("=")
        if not operator or not value:
            raise UsageError(f"{text!r} does not have the form {syntax}", hint=f"Such as {example}")
        yield operator, value
