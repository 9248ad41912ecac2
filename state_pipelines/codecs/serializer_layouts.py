"""Layouts of serializers: the bytes that each of Flink's serializers writes, and subclasses of POJOs.

* `derive_layout`: the layout of a serializer. Source: the `serialize` method of each Flink serializer, named by the
  node's docstring in `serializers.tree`.
* `find_subclasses`, `declare_subclasses`: subclasses of POJOs that the serializer of a state does not list. The heap
  backend writes objects of a subclass without listing the class in the serializer of the state. That of another state
  may list it. Else the layout follows from a declaration: the fields of the base class as the snapshot has them and the
  declared ones, sorted by name, each with the serializer that Flink derives from its Java type (`TypeExtractor`,
  `PojoTypeInfo`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from state_pipelines.binary.data_views import java_order
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.beam import VarSized
from state_pipelines.codecs.columns import is_known, runs, walk_layout
from state_pipelines.codecs.kryo.classes import ARRAY, PRIMITIVES, FieldLists, JavaType
from state_pipelines.codecs.layout import (
    Layout,
    Primitive,
    PrimitiveKind,
    find_layout,
    has_fixed_length,
    on_registration,
    parse_layout,
)
from state_pipelines.codecs.layout import LayoutContext as LayoutContext
from state_pipelines.codecs.layout import OpaqueValues as OpaqueValues
from state_pipelines.codecs.layout import keep_all_opaque as keep_all_opaque
from state_pipelines.codecs.layout import keep_undecodable as keep_undecodable
from state_pipelines.codecs.scalar import WRITABLE_LAYOUTS
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers import build, tree
from state_pipelines.serializers.python_types import PICKLED, PythonType, PythonValue
from state_pipelines.serializers.tree import (
    COMPONENTS,
    BasicKind,
    Enum,
    Kryo,
    Pojo,
    PojoField,
    PojoSubclass,
    Serializer,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_BASIC = {
    **{name: BasicKind(name.capitalize()) for name in PRIMITIVES},
    **{
        f"java.lang.{name}": BasicKind(name)
        for name in ("Boolean", "Byte", "Short", "Long", "Float", "Double", "String", "Void")
    },
    "java.lang.Integer": BasicKind.INT,
    "java.lang.Character": BasicKind.CHAR,
    "java.math.BigDecimal": BasicKind.BIG_DEC,
    "java.math.BigInteger": BasicKind.BIG_INT,
    "java.util.Date": BasicKind.DATE,
    "java.sql.Date": BasicKind.SQL_DATE,
    "java.sql.Time": BasicKind.SQL_TIME,
    "java.sql.Timestamp": BasicKind.SQL_TIMESTAMP,
    "java.time.Instant": BasicKind.INSTANT,
    "java.time.LocalDate": BasicKind.LOCAL_DATE,
    "java.time.LocalTime": BasicKind.LOCAL_TIME,
    "java.time.LocalDateTime": BasicKind.LOCAL_DATE_TIME,
}
_FIRST_KRYO_WITH_COLLECTIONS = 5


def find_subclasses(pojo: Pojo, context: LayoutContext) -> tuple[PojoSubclass, ...]:
    """Return the non-registered subclasses whose objects may occur in a field of a POJO class, sorted by name."""
    found = {each.class_name: each for each in pojo.non_registered}
    for each in dict(context.subclasses).get(pojo.pojo_class, ()):
        found.setdefault(each.class_name, each)
    if context.classes is not None:
        for each in declare_subclasses(pojo, context.classes, context.kryo_version):
            found.setdefault(each.class_name, each)
    # Sorted, since every subtask lists the classes in the order in which it met them.
    return tuple(found[name] for name in sorted(found))


def complete(serializer: Serializer, context: LayoutContext) -> Serializer:
    """Return `serializer` with the subclasses that only `context` knows added to its POJO serializers."""
    changes: dict[str, Any] = {
        each.name: _complete_member(getattr(serializer, each.name), context) for each in fields(serializer)
    }
    whole = replace(serializer, **changes)
    return replace(whole, non_registered=find_subclasses(whole, context)) if isinstance(whole, Pojo) else whole


def _complete_member(member: object, context: LayoutContext) -> object:
    match member:
        case Serializer():
            return complete(member, context)
        case PojoField(serializer=Serializer() as inner) | PojoSubclass(serializer=Serializer() as inner):
            return replace(member, serializer=complete(inner, context))
        case tuple():
            return tuple(_complete_member(each, context) for each in member)
        case _:
            return member


def declare_subclasses(pojo: Pojo, classes: FieldLists, kryo_version: int) -> tuple[PojoSubclass, ...]:
    """Return the subclasses of a POJO class, direct or not, that the user declares and its serializer does not list.

    Args:
        pojo: serializer of the POJO class.
        classes: declarations of the user; subclasses are those with `extends`.
        kryo_version: 2 for snapshots of Flink 1.x, where fields of collection types go through Kryo.
    """
    listed = {each.class_name for each in (*pojo.registered, *pojo.non_registered)}
    return tuple(
        PojoSubclass(class_name=name, serializer=_extend(pojo, name, classes, kryo_version))
        for name in classes.list_subclasses(pojo.pojo_class)
        if name not in listed
    )


def _extend(pojo: Pojo, name: str, classes: FieldLists, kryo_version: int) -> Pojo:
    types = _Types(pojo, classes, kryo_version)
    members = {field.name: field for field in pojo.fields}
    declared = classes.classes[name]
    while declared.name != pojo.pojo_class:
        for member, of in declared.fields:
            field = PojoField(name=member, declaring_class=declared.name, serializer=types.serializer(of))
            members.setdefault(member, field)
        if declared.base not in classes.classes:
            break
        declared = classes.classes[declared.base]
    ordered = sorted(members.values(), key=lambda field: java_order(field.name))
    return Pojo(pojo_class=name, fields=tuple(ordered))


class _Types:
    """Finds serializers of declared Java types; reuses those that are nested in a POJO serializer of the same job."""

    def __init__(self, pojo: Pojo, classes: FieldLists, kryo_version: int) -> None:
        self.classes = classes
        self.collections = kryo_version >= _FIRST_KRYO_WITH_COLLECTIONS
        nodes = list(walk(pojo))
        self.known: dict[str, Serializer] = {each.pojo_class: each for each in nodes if isinstance(each, Pojo)}
        self.known |= {each.enum_class: each for each in nodes if isinstance(each, Enum)}
        # All Kryo serializers of a job have the same registrations, which give classes their ids.
        kryo = next((each for each in nodes if isinstance(each, Kryo)), None)
        self.registrations = () if kryo is None else kryo.registrations

    def serializer(self, of: JavaType) -> Serializer:
        if (kind := _BASIC.get(of.name)) is not None:
            return build.basic(kind)
        if of.name == ARRAY:
            return self._array(of.arguments[0])
        arguments = [self.serializer(each) for each in of.arguments] if self.collections else []
        match of.name, arguments:
            case ("java.util.List", [element]):
                return build.nullable(build.list_of(build.nullable(element)))
            case ("java.util.Set", [element]):
                return build.nullable(build.set_of(element))
            case ("java.util.Map", [key, value]):
                return build.nullable(build.map_of(build.nullable(key), value))
        if of.name in self.known:
            return self.known[of.name]
        declared = self.classes.find(of.name)
        if declared is not None and declared.constants:
            return build.enum(of.name, *declared.constants)
        return Kryo(type_class=of.name, registrations=self.registrations)

    def _array(self, component: JavaType) -> Serializer:
        if component.name in PRIMITIVES:
            return build.basic(f"{component.name.capitalize()}PrimitiveArray")
        if component.name == "java.lang.String":
            return build.basic(BasicKind.STRING_ARRAY)
        return build.generic_array(component.name, self.serializer(component))


_I32, _I64 = Primitive(PrimitiveKind.I32), Primitive(PrimitiveKind.I64)
_PRECISION_OF_MILLIS = 3
_FIRST_COPRODUCT_WITH_NULL = 3

_PRIMITIVES = {
    BasicKind.BOOLEAN: Primitive(PrimitiveKind.BOOL),
    BasicKind.BYTE: Primitive(PrimitiveKind.I8),
    BasicKind.SHORT: Primitive(PrimitiveKind.I16),
    BasicKind.CHAR: lay.Logical(lay.LogicalKind.CHAR),
    BasicKind.INT: _I32,
    BasicKind.LONG: _I64,
    BasicKind.FLOAT: Primitive(PrimitiveKind.F32),
    BasicKind.DOUBLE: Primitive(PrimitiveKind.F64),
}

BASIC_LAYOUTS: dict[BasicKind, Layout] = {
    **_PRIMITIVES,
    **{BasicKind(f"{kind}Value"): layout for kind, layout in _PRIMITIVES.items()},
    **{array: lay.Sequence(_PRIMITIVES[kind]) for array, kind in COMPONENTS.items()},
    BasicKind.CHAR_PRIMITIVE_ARRAY: lay.Sequence(Primitive(PrimitiveKind.U16)),
    BasicKind.BYTE_PRIMITIVE_ARRAY: lay.Sized(),
    BasicKind.BYTE_ARRAY_WRAPPER: lay.Sized(),
    BasicKind.STRING: lay.Text(),
    BasicKind.STRING_VALUE: lay.Text(nullable=False),
    BasicKind.STRING_DATA: lay.Sized(text=True),
    BasicKind.SORTED_LONG: lay.Logical(lay.LogicalKind.ORDERED_I64),
    BasicKind.STRING_ARRAY: lay.Sequence(lay.Text()),
    BasicKind.BIG_INT: lay.BigInteger(),
    BasicKind.BIG_DEC: lay.BigDecimal(),
    BasicKind.DATE: lay.Logical(lay.LogicalKind.DATE_MILLIS),
    BasicKind.SQL_DATE: lay.Logical(lay.LogicalKind.DATE_MILLIS),
    BasicKind.SQL_TIME: lay.Logical(lay.LogicalKind.DATE_MILLIS),
    BasicKind.SQL_TIMESTAMP: lay.Logical(lay.LogicalKind.SQL_TIMESTAMP),
    BasicKind.INSTANT: lay.Logical(lay.LogicalKind.INSTANT),
    BasicKind.LOCAL_DATE: lay.Logical(lay.LogicalKind.LOCAL_DATE),
    BasicKind.LOCAL_TIME: lay.Logical(lay.LogicalKind.LOCAL_TIME),
    BasicKind.LOCAL_DATE_TIME: lay.Logical(lay.LogicalKind.LOCAL_DATE_TIME),
    BasicKind.NULL_VALUE: lay.Constant(b""),
    BasicKind.VOID: lay.Constant(b"\0"),
    BasicKind.NULL: lay.Constant(b"\0"),
    BasicKind.UNIT: lay.Constant(b"\0"),
    BasicKind.TUPLE_0: lay.Constant(b"\x2a", empty=True),
    BasicKind.VOID_NAMESPACE: lay.Constant(b"\0"),
    BasicKind.GLOBAL_WINDOW: lay.Constant(b"\0", empty=True),
    BasicKind.TABLE_GLOBAL_WINDOW: lay.Constant(b"\0", empty=True),
    BasicKind.TIME_WINDOW: lay.Struct((("start", _I64), ("end", _I64))),
    BasicKind.TABLE_TIME_WINDOW: lay.Struct((("start", _I64), ("end", _I64))),
    BasicKind.COUNT_WINDOW: lay.Struct((("id", _I64),)),
    BasicKind.DEWEY_NUMBER: lay.Sequence(_I32),
    BasicKind.EVENT_ID: lay.Struct((("id", _I32), ("timestamp", _I64))),
    BasicKind.BYTE_VALUE_ARRAY: lay.Sized(),
    BasicKind.CHAR_VALUE_ARRAY: lay.Sequence(Primitive(PrimitiveKind.U16)),
    BasicKind.NULL_VALUE_ARRAY: lay.Sequence(lay.Constant(b"")),
    **{
        BasicKind(f"{kind}ValueArray"): lay.Sequence(_PRIMITIVES[kind])
        for kind in (BasicKind.SHORT, BasicKind.INT, BasicKind.LONG, BasicKind.FLOAT, BasicKind.DOUBLE)
    },
    BasicKind.LONG_VALUE_WITH_PROPER_HASH_CODE: _I64,
    BasicKind.UUID: lay.Struct((("mostSigBits", _I64), ("leastSigBits", _I64))),
    BasicKind.BITMAP: lay.Sized(),
    BasicKind.PYTHON_STRING: lay.Sized(text=True),
    BasicKind.PYTHON_DATE: _I32,
    BasicKind.PYTHON_TIME: _I32,
    BasicKind.KAFKA_TRANSACTION_STATE: lay.Struct(
        (
            ("transactionalId", lay.Optional(lay.JavaText(), null_flag=0)),
            ("producerId", _I64),
            ("epoch", Primitive(PrimitiveKind.I16)),
        )
    ),
    BasicKind.KAFKA_TRANSACTION_CONTEXT: lay.Struct((("transactionalIds", lay.Sequence(lay.JavaText())),)),
    BasicKind.KAFKA_NEXT_TRANSACTIONAL_ID_HINT: lay.Struct(
        (("nextFreeTransactionalId", _I64), ("lastParallelism", _I32))
    ),
}
"""Layout of each kind of `tree.Basic`; kinds that are not here have none (`Dynamic`)."""

_PYTHON_LAYOUTS: dict[str, Layout] = {
    "BOOLEAN": Primitive(PrimitiveKind.BOOL),
    "TINYINT": Primitive(PrimitiveKind.I8),
    "SMALLINT": Primitive(PrimitiveKind.I16),
    "INT": _I32,
    "BIGINT": _I64,
    "FLOAT": Primitive(PrimitiveKind.F32),
    "DOUBLE": Primitive(PrimitiveKind.F64),
    "STRING": lay.Sized(text=True),
    "BYTES": lay.Sized(),
    "DECIMAL": lay.Sized(text=True),
    "DATE": lay.Logical(lay.LogicalKind.EPOCH_DAY),
    "TIME": lay.Logical(lay.LogicalKind.MILLI_OF_DAY),
    "INSTANT": lay.Logical(lay.LogicalKind.INSTANT),
}
"""Layouts of the data that PyFlink's coders write (`pyflink.fn_execution.coder_impl_slow`)."""


# The length of both ids is stored in one byte, which reads like a VarInt because ids have at most 64 bytes.
_XID = lay.Struct((("formatId", _I32), ("globalTransactionId", VarSized()), ("branchQualifier", VarSized())))
_CHECKPOINT_AND_XID = lay.Struct((("checkpointId", _I64), ("attempts", _I32), ("xid", _XID)))
BASIC_LAYOUTS |= {
    BasicKind.JDBC_XID: _XID,
    BasicKind.JDBC_CHECKPOINT_AND_XID: _CHECKPOINT_AND_XID,
    BasicKind.JDBC_XA_SINK_STATE: lay.Struct(
        (("hanging", lay.Sequence(_XID)), ("prepared", lay.Sequence(_CHECKPOINT_AND_XID)))
    ),
}


@lru_cache(maxsize=4096)
def derive_layout(serializer: tree.Serializer, context: LayoutContext) -> Layout:
    """Return the layout of the data that `serializer` writes.

    Raises:
        UnsupportedError: a nested serializer could not be resolved when the snapshot was written.
    """
    return _Derivation(context).derive_node(serializer)


on_registration(derive_layout.cache_clear)


@dataclass(frozen=True)
class _Derivation:
    """Derives the layouts of serializers in one context."""

    context: LayoutContext

    def derive(self, serializer: tree.Serializer) -> Layout:
        """Return the layout of a nested serializer, from the cache: other serializers may contain it, too."""
        return derive_layout(serializer, self.context)

    def derive_node(self, serializer: tree.Serializer) -> Layout:
        """Derive the layout of a serializer from the layouts of its nested serializers."""
        match serializer:
            case tree.Basic(kind=kind):
                return BASIC_LAYOUTS.get(kind) or self._make_dynamic(serializer)
            case tree.ListOf(element=element):
                return lay.Sequence(self.derive(element))
            case tree.SetOf(element=element):
                return lay.Sequence(lay.Optional(self.derive(element)))
            case tree.MapOf(key=key, value=value, null_keys=null_keys):
                keys = lay.Optional(self.derive(key)) if null_keys else self.derive(key)
                return lay.Mapping(keys, lay.Optional(self.derive(value)))
            case tree.SortedMapOf(key=key, value=value):
                return lay.Mapping(self.derive(key), lay.Optional(self.derive(value)))
            case tree.GenericArray(element=element):
                return lay.Sequence(lay.Optional(self.derive(element), null_flag=0))
            case tree.Tuple(fields=fields):
                return lay.Struct(self._name_fields(fields))
            case tree.PositionalRow(fields=fields, supports_row_kind=kind):
                return lay.Masked(self._name_fields(fields), kind)
            case tree.Either(left=left, right=right):
                return lay.Choice(self.derive(left), self.derive(right))
            case tree.CaseClass(fields=fields) if fields:
                # Some releases of flink-scala-api do not store the number of fields. The snapshot does not tell them
                # apart, so this layout requires the number.
                return lay.Marked(lay.Struct(self._name_fields(fields)), null=-1, present=len(fields))
            case tree.Coproduct(serializers=nested):
                return _derive_coproduct(serializer, [self.derive(each) for each in nested])
            case tree.ScalaCollection(element=element):
                return lay.Sequence(self.derive(element))
            case tree.ScalaMap(key=key, value=value):
                return lay.Mapping(self.derive(key), self.derive(value))
            case tree.Mapped(inner=inner):
                return self.derive(inner)
            case tree.CaseObject():
                return lay.Constant(b"", empty=True)
            case tree.Nullable(inner=inner, padding=padding):
                return lay.Optional(self.derive(inner), padding=padding)
            case tree.Enum(constants=constants):
                return lay.Constants(constants)
            case tree.ScalaEnum(constants=constants) if [number for _, number in constants] == [*range(len(constants))]:
                return lay.Constants(tuple(name for name, _ in constants))
            case tree.Pojo():
                return self._derive_pojo(serializer)
            case tree.Ttl(timestamp=timestamp, inner=inner):
                return lay.Struct((("last_access", self.derive(timestamp)), ("value", self.derive(inner))))
            case tree.Timer(key=key, namespace=namespace):
                ordered = lay.Logical(lay.LogicalKind.ORDERED_I64)
                return lay.Struct(
                    (("timestamp", ordered), ("key", self.derive(key)), ("namespace", self.derive(namespace)))
                )
            case tree.TtlAware(inner=inner) | tree.ListView(inner=inner) | tree.MapView(inner=inner):
                return self.derive(inner)
            case tree.External(inner=inner) | tree.RowDataKey(inner=inner):
                return self.derive(inner)
            case tree.RawValue(inner=inner):
                return lay.Framed(self.derive(inner))
            case tree.LinkedListOf(element=element, has_null_mask=mask):
                return lay.NullMasked(self.derive(element), mask)
            case tree.WindowKey(key=key):
                return lay.Struct((("window", _I64), ("key", self.derive(key))))
            case tree.Variants():
                return self._derive_variants(serializer)
            case tree.PythonRow(fields=fields):
                return lay.Masked(self._name_fields(fields), kind=True)
            case tree.PythonArray(element=element):
                return lay.Sequence(lay.Optional(self.derive(element), null_flag=0))
            case tree.PythonMap(key=key, value=value):
                return lay.Mapping(self.derive(key), lay.Optional(self.derive(value)))
            case PythonType():
                return self._derive_python(serializer)
            case PythonValue(type=inner):
                return lay.Framed(self.derive(inner))
            case tree.Declared(layout=text, serializers=nested):
                return parse_layout(text, tuple(map(self.derive, nested)))
            case tree.ClassBound(type_class=name):
                return (
                    find_layout(serializer, self.derive) or WRITABLE_LAYOUTS.get(name) or self._make_dynamic(serializer)
                )
            case _:
                return find_layout(serializer, self.derive) or self._make_dynamic(serializer)

    def _name_fields(self, fields: tuple[tree.Serializer, ...]) -> tuple[tuple[str, Layout], ...]:
        return tuple((f"f{index}", self.derive(child)) for index, child in enumerate(fields))

    def _make_dynamic(self, serializer: tree.Serializer) -> lay.Dynamic | lay.OpaqueBytes:
        # Only Kryo needs the field lists. Without them, other layouts with the same serializer are equal.
        layout = lay.Dynamic(serializer, self.context.kryo_version)
        if isinstance(serializer, tree.Kryo):
            layout = lay.Dynamic(serializer, self.context.kryo_version, self.context.classes, self.context.messages)
        match self.context.opaque_values:
            case OpaqueValues.ALL if not runs(layout):
                return lay.OpaqueBytes(layout)
            case OpaqueValues.UNDECODABLE if not runs(layout) and not is_known(layout):
                return lay.OpaqueBytes(layout)
        return layout

    def _derive_python(self, node: PythonType) -> Layout:
        children = [self.derive(child) for child in node.children]
        match node.word:
            case "ROW":
                return lay.Masked(tuple(zip(node.field_names, children, strict=True)), kind=True)
            case "TUPLE":
                return lay.Struct(tuple(zip(node.field_names, children, strict=True)))
            case "ARRAY":
                return lay.Sequence(lay.Optional(children[0], null_flag=0))
            case "PRIMITIVE_ARRAY":
                return lay.Sequence(children[0])
            case "MAP":
                return lay.Mapping(children[0], lay.Optional(children[1]))
            case "TIMESTAMP":
                millis = node.precision <= _PRECISION_OF_MILLIS
                return (
                    lay.Logical(lay.LogicalKind.DATE_MILLIS) if millis else lay.Logical(lay.LogicalKind.SQL_TIMESTAMP)
                )
            case word if word == PICKLED:
                return self._make_dynamic(node)
        return _PYTHON_LAYOUTS[node.word]

    def _derive_pojo(self, pojo: tree.Pojo) -> lay.PojoObject:
        fields = []
        for each in pojo.fields:
            if each.serializer is None:
                raise UnsupportedError(
                    f"the type of field {each.name} of {pojo.pojo_class} was lost before the snapshot was written",
                    hint="restore the snapshot with the class on the class path and take a new one",
                )
            fields.append((each.name, self.derive(each.serializer)))
        tagged = tuple(enumerate(pojo.registered))
        variants = tuple(
            lay.PojoVariant(each.class_name, tag, self.derive(each.serializer))
            for tag, each in (*tagged, *((None, each) for each in find_subclasses(pojo, self.context)))
            if each.serializer is not None
        )
        return lay.PojoObject(pojo.pojo_class, tuple(fields), variants)

    def _derive_variants(self, node: tree.Variants) -> Layout:
        nested = [self.derive(each) for each in node.serializers]
        match node.kind:
            case tree.VariantKind.BUFFER_ENTRY:
                return lay.Struct((("joined", Primitive(PrimitiveKind.BOOL)), ("element", nested[0])))
            case tree.VariantKind.LOCKABLE:
                return lay.Struct((("reference_count", _I32), ("element", nested[0])))
            case tree.VariantKind.NODE_ID:
                return lay.Optional(lay.Struct((("event", nested[0]), ("page", lay.Text()))), null_flag=0)
            case tree.VariantKind.SHARED_BUFFER_EDGE:
                return lay.Struct((("target", nested[0]), ("version", nested[1])))
            case tree.VariantKind.SHARED_BUFFER_NODE:
                return lay.Sequence(lay.Struct((("reference_count", _I32), ("edge", nested[0]))))
            case tree.VariantKind.SHARED_BUFFER_EDGES | tree.VariantKind.SINGLE_THREAD_ACCESS_CHECKING:
                return nested[0]
            case tree.VariantKind.SCALA_OPTION:
                return lay.Optional(nested[0], null_flag=0)
            case tree.VariantKind.TRAVERSABLE:
                return lay.Sequence(lay.Optional(nested[0], null_flag=0))
            case tree.VariantKind.UNION:
                return lay.Tagged(((1, "one", nested[0]), (2, "two", nested[1])))
            case tree.VariantKind.SCALA_TRY:
                return lay.Tagged(((0, "failure", nested[1]), (1, "success", nested[0])))
            case tree.VariantKind.META_SQN_INFO:
                return lay.Struct((("high_sqn", nested[0]), ("size", nested[1])))
            case tree.VariantKind.ROW_SQN_INFO:
                return lay.Struct((("first_sqn", nested[0]), ("last_sqn", nested[1])))
            case tree.VariantKind.SEQUENCED_NODE:
                names = ("row", "sqn", "prev_sqn", "next_sqn", "next_sqn_for_record", "timestamp")
                return lay.Struct(tuple(zip(names, nested, strict=True)))
            case tree.VariantKind.STREAM_ELEMENT:
                return _stream_element(nested[0])
            case tree.VariantKind.NFA_STATE:
                return _nfa_state(nested, previous=bool(node.flag))
            case tree.VariantKind.TWO_PHASE_COMMIT:
                transaction = lay.Struct((("transaction", nested[0]), ("started", _I64)))
                pending = lay.Optional(transaction, null_flag=0) if node.flag else transaction
                fields = (
                    ("pending", pending),
                    ("committing", lay.Sequence(transaction)),
                    ("context", lay.Optional(nested[1], null_flag=0)),
                )
                return lay.Struct(fields)
            case _:
                return self._make_dynamic(node)


def fixed_length(serializer: tree.Serializer, context: LayoutContext) -> int | None:
    """Return the fixed size of the values in bytes; None where `TypeSerializer.getLength` returns -1."""
    if all(has_fixed_length(node) for node in walk(serializer)):
        return lay.fixed_width(derive_layout(serializer, context))
    return None


def collect_subclasses(serializers: Iterable[tree.Serializer]) -> tuple[tuple[str, tuple[tree.PojoSubclass, ...]], ...]:
    """Return the non-registered POJO subclasses that any of `serializers` lists, as `LayoutContext.subclasses`."""
    found: dict[str, dict[str, tree.PojoSubclass]] = {}
    for serializer in serializers:
        for node in walk(serializer):
            if isinstance(node, tree.Pojo):
                for subclass in node.non_registered:
                    if subclass.serializer is not None:
                        found.setdefault(node.pojo_class, {}).setdefault(subclass.class_name, subclass)
    return tuple((name, tuple(subclasses.values())) for name, subclasses in sorted(found.items()))


def contains_opaque(serializer: tree.Serializer, context: LayoutContext) -> bool:
    """Return whether values of `serializer` are or contain opaque values (`OpaqueValues.ALL`), such as Kryo's."""
    return any(
        isinstance(each, lay.OpaqueBytes) for each in walk_layout(derive_layout(serializer, keep_all_opaque(context)))
    )


def _derive_coproduct(node: tree.Coproduct, nested: list[Layout]) -> Layout:
    cases = [(index, name, layout) for index, (name, layout) in enumerate(zip(node.cases, nested, strict=True))]
    if node.snapshot_version >= _FIRST_COPRODUCT_WITH_NULL:
        cases.append((0x80, "null", lay.Constant(b"")))
    return lay.Tagged(tuple(cases))


def _nfa_state(nested: list[Layout], *, previous: bool) -> Layout:
    version, node, event = nested
    fields: list[tuple[str, Layout]] = [
        ("state", lay.Text()),
        ("previous_node", node),
        ("version", version),
        ("start_timestamp", _I64),
    ]
    if previous:
        fields.append(("previous_timestamp", _I64))
    fields.append(("start_event", lay.Optional(event, null_flag=0)))
    computations = lay.Sequence(lay.Struct(tuple(fields)))
    return lay.Struct((("partial", computations), ("completed", computations)))


def _stream_element(value: Layout) -> Layout:
    """Return the layout of `StreamElementSerializer`; Flink 1.19 and 1.20 added internal watermarks and attributes."""
    marker = lay.Struct((("marked_time", _I64), ("operator_lower", _I64), ("operator_upper", _I64), ("subtask", _I32)))
    cases = (
        ("record", lay.Struct((("timestamp", _I64), ("value", value)))),
        ("record_without_timestamp", value),
        ("watermark", _I64),
        ("latency_marker", marker),
        ("watermark_status", _I32),
        ("record_attributes", Primitive(PrimitiveKind.BOOL)),
        ("internal_watermark", lay.Struct((("subpartition", _I32), ("timestamp", _I64)))),
    )
    return lay.Tagged(tuple((tag, name, layout) for tag, (name, layout) in enumerate(cases)))
