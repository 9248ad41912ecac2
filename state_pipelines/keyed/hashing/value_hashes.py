"""Java hash codes of whole values, and of the keys of records from their bytes.

* `Hasher`, `hash_codes`: a walk of the serializer beside an Arrow array. Source: `hashCode` of the class of each
  serializer; `org.apache.flink.types.RowUtils` for rows.
* `KeyHasher`, `make_key_hasher`, `find_key_group`: keys of records. Keys of the most frequent types are hashed from
  their bytes; others are decoded first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.avro import parse_avro_schema
from state_pipelines.codecs.beam import derive_coder
from state_pipelines.codecs.columns import ColumnCodec, plan_columns
from state_pipelines.codecs.kryo import read_kryo_class
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.hashing import class_hashes
from state_pipelines.keyed.hashing.basic_hashes import (
    BASIC_HASHES,
    HashCodes,
    chain,
    chain_fields,
    conform_basic,
    fields_of,
    flatten,
    hash_int_keys,
    hash_ints,
    hash_long_keys,
    hash_primitive_array,
    hash_row_keys,
    hash_string_keys,
    hash_strings,
    hash_wrapped_bytes,
    list_offsets,
    numbers,
    sum_list,
    without_nulls,
)
from state_pipelines.keyed.hashing.class_hashes import HashExpression, How, hash_kryo, is_hashed, unknown_kryo_hash
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers import beam, tree
from state_pipelines.serializers.beam import BeamSerializer, Coder
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.tree import COMPONENTS, BasicKind, walk

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo import Version
    from state_pipelines.keyed.record_layout import KeyedRecords

FLINK_TUPLES = "org.apache.flink.api.java.tuple."


def class_name(node: tree.Serializer) -> str | None:
    """Return the class if its `hashCode` may be user code; None for classes of Java, Scala and Flink."""
    match node:
        case tree.Pojo(pojo_class=name) | tree.Avro(runtime_class=name) | tree.CaseClass(case_class=name):
            return name
        case tree.Tuple(tuple_class=name) if not name.startswith(FLINK_TUPLES):
            return name
        case _:
            return None


def is_unknown(node: tree.Serializer) -> bool:
    """Return whether the `hashCode` of a class is not known, so that it must be found by a search or given."""
    match node:
        case tree.Pojo() | tree.CaseClass():
            # The hash of a case class of flink-scala-api depends on the Scala release, which snapshots do not store.
            return True
        case tree.Avro():
            return not class_hashes.is_settled(node)
        case tree.Tuple():
            return not (node.snapshot_class.endswith(".TupleSerializerSnapshot") or class_hashes.is_tuple(node))
        case _:
            return False


def find_unknown_classes(serializer: tree.Serializer, known: Mapping[str, object]) -> dict[str, tree.Serializer]:
    """Return the classes inside a key whose hash must be found, innermost first, without those that are `known`."""
    found: dict[str, tree.Serializer] = {}
    for node in reversed([*walk(serializer)]):
        name = class_name(node)
        if name is not None and is_unknown(node) and name not in known:
            found.setdefault(name, node)
    return found


def field_nodes(node: tree.Serializer) -> dict[str, tree.Serializer]:
    """Return the fields of a class and their serializers; those of a tuple or case class are `f0`, `f1`, ….

    Fields of Avro records have no serializers of their own: each comes with the one of the record.

    Raises:
        UnsupportedError: the snapshot does not have the type of a field, which Flink had lost before it wrote it.
    """
    match node:
        case tree.Pojo(fields=fields):
            found = {}
            for each in fields:
                if each.serializer is None:
                    raise UnsupportedError(f"the type of field {each.name} of {node.pojo_class} is not in the snapshot")
                found[each.name] = each.serializer
            return found
        case tree.Tuple(fields=nested) | tree.CaseClass(fields=nested):
            return {f"f{index}": serializer for index, serializer in enumerate(nested)}
        case tree.Avro(schema_json=schema):
            return dict.fromkeys(class_hashes.field_names(parse_avro_schema(schema)), node)
        case _:
            return {}


def refuse_type(node: tree.Serializer) -> UsageError | UnsupportedError:
    """Return the error for a type whose values cannot be hashed here."""
    is_array = isinstance(node, tree.GenericArray) or (
        isinstance(node, tree.Basic) and node.kind in (*COMPONENTS, tree.BasicKind.STRING_ARRAY)
    )
    if is_array or isinstance(node, tree.Enum | tree.ScalaEnum):
        what = "an array" if is_array else "an enum constant"
        return UsageError(
            f"{what} cannot be a key: its hashCode differs from one JVM to the next, so Flink refuses it",
            hint="Key by its name or by a list, or wrap it in a Row if it is an array",
        )
    if getattr(node, "type_class", None) is not None or class_name(node) is not None:
        return unknown_hash(node)
    what = node.kind if isinstance(node, tree.Basic | tree.Variants) else type(node).__name__
    return UnsupportedError(
        f"the hash codes of {what} keys are not computed yet",
        hint="Operations that leave keys in their key groups need none",
    )


def unknown_hash(node: tree.Serializer) -> UnsupportedError:
    """Make the error for a user class whose `hashCode` is not known."""
    name = getattr(node, "type_class", None) or class_name(node)
    return UnsupportedError(
        f"the hashCode of {name} is code of the user's that no snapshot holds",
        hint="Give its hash as an expression over its fields, such as objects(a, b) for Objects.hash or record(a, b)",
    )


ClassHash = Callable[[pa.StructArray], HashCodes]
"""`hashCode` of a user class: structs in, i32[n] out; results for nulls are ignored."""

_STRING = basic(BasicKind.STRING)


def hash_codes(
    serializer: tree.Serializer,
    array: pa.Array,
    *,
    pojo_hashes: Mapping[str, ClassHash] | None = None,
    expressions: Mapping[str, HashExpression] | None = None,
) -> HashCodes:
    """Compute `hashCode()` of every value; 0 for null.

    Args:
        serializer: of the values.
        array: the values, in the Arrow form of the serializer's layout (integers of another width are cast).
        pojo_hashes: by class name, the `hashCode` of POJO, Avro and Scala case classes.
        expressions: by class name, the `hashCode` of other such classes, as expressions.

    Returns:
        i32[n].

    Raises:
        UsageError: values of the type cannot be keys, or the array is not one of such values.
        UnsupportedError: the hash is not known here (user classes without an entry).
        ValueRangeError: a value is not one of the type.
    """
    return Hasher(dict(pojo_hashes or {}), dict(expressions or {})).hash(serializer, array)


@dataclass(frozen=True)
class Hasher:
    """Computes hash codes of Arrow arrays by walking the tree of their serializer.

    Attributes:
        class_hashes: functions for user classes, by name; they precede `expressions`.
        expressions: hashes of user classes, by name.
    """

    class_hashes: dict[str, ClassHash] = field(default_factory=dict)
    expressions: dict[str, HashExpression] = field(default_factory=dict)

    def hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        """Compute `hashCode()` of each value, 0 for null."""
        codes = self._hash(node, array)
        # A null option is Scala's `None`, an object whose hash is not 0.
        return codes if class_hashes.is_option(node) else without_nulls(codes, array)

    def _hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        name = class_name(node)
        if name is not None and (name in self.class_hashes or name in self.expressions):
            return self._hash_class(node, name, array)
        match node:
            case tree.Basic(kind=kind) if kind in BASIC_HASHES:
                return BASIC_HASHES[kind](conform_basic(kind, array))
            case BeamSerializer(coder=Coder(class_name=beam.BYTE_BUFFER_CODER, components=((_, inner),))):
                return hash_wrapped_bytes(_encode_coded(inner, array))
            case (
                tree.Basic(kind=BasicKind.BYTE_ARRAY_WRAPPER)
                | BeamSerializer(coder=Coder(class_name=beam.BYTE_BUFFER_CODER))
            ):
                return hash_wrapped_bytes(array)
            case tree.Nullable(inner=inner):
                return self._hash(inner, array)
            case tree.Tuple(fields=fields):
                return self._hash_tuple(node, fields, array)
            case tree.PositionalRow(fields=fields):
                return self._hash_row(fields, array)
            case tree.RowData() | tree.BinaryRow():
                return _hash_binary_rows(node, array)
            case tree.Either():
                return self._hash_either(node, array)
            case tree.Variants(kind=tree.VariantKind.SCALA_OPTION, serializers=nested):
                some = class_hashes.mix_product([self.scala_hash(nested[0], array)])
                return np.where(np.asarray(array.is_valid()), some, np.int32(class_hashes.NONE_HASH))
            case tree.Kryo():
                return hash_kryo(node, array)
            case tree.Avro():
                return class_hashes.hash_generic_record(node, array)
            case tree.ListOf(element=element):
                return self._chain_list(array, lambda child: self.hash(element, child))
            case tree.SetOf(element=element):
                return sum_list(array, self.hash(element, flatten(array)))
            case tree.MapOf(key=key, value=value):
                keys, values = self.hash_fields([("key", key), ("value", value)], flatten(array))
                return sum_list(array, keys ^ values)
        raise refuse_type(node)

    def scala_hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        """Compute Scala's `##` of each value: `hashCode`, but the same for equal numbers of all types; 0 for null."""
        inner = node.inner if isinstance(node, tree.Nullable) else node
        if isinstance(inner, tree.Basic) and inner.kind in class_hashes.NUMBER_HASHES:
            return without_nulls(class_hashes.NUMBER_HASHES[inner.kind](conform_basic(inner.kind, array)), array)
        return self.hash(node, array)

    def element_hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        """Compute the hash codes of a field of a row: `Arrays.deepHashCode`, also inside lists and maps; 0 for null."""
        return without_nulls(self._element_hash(node, array), array)

    def _element_hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        match node:
            case tree.Nullable(inner=inner):
                return self._element_hash(inner, array)
            case tree.ListOf(element=element) | tree.GenericArray(element=element):
                return self._chain_list(array, lambda child: self.element_hash(element, child))
            case tree.Basic(kind=BasicKind.STRING_ARRAY):
                return self._chain_list(array, lambda child: self.element_hash(_STRING, child))
            case tree.Basic(kind=kind) if kind in COMPONENTS:
                return 31 + hash_primitive_array(COMPONENTS[kind], array)
            case tree.MapOf(key=key, value=value):
                keys, values = self.hash_fields([("key", key), ("value", value)], flatten(array), self.element_hash)
                return 1 + sum_list(array, keys ^ values)
        return 31 + self.hash(node, array)

    def array_hash(self, node: tree.Serializer, array: pa.Array) -> HashCodes:
        """Compute `Arrays.hashCode` of arrays of numbers, `Arrays.deepHashCode` of those of objects; 0 for null."""
        match node:
            case tree.Nullable(inner=inner):
                return self.array_hash(inner, array)
            case tree.GenericArray(element=element):
                codes = self._chain_list(array, lambda child: self.array_hash(element, child))
            case tree.Basic(kind=BasicKind.STRING_ARRAY):
                codes = self._chain_list(array, lambda child: self.hash(_STRING, child))
            case tree.Basic(kind=kind) if kind in COMPONENTS:
                codes = hash_primitive_array(COMPONENTS[kind], array)
            case _:
                return self.hash(node, array)
        return without_nulls(codes, array)

    def _hash_tuple(self, node: tree.Tuple, fields: tuple[tree.Serializer, ...], array: pa.Array) -> HashCodes:
        if class_hashes.is_tuple(node):
            return class_hashes.mix_product(self.hash_fields(_positional(fields), array, self.scala_hash))
        if not node.snapshot_class.endswith(".TupleSerializerSnapshot"):
            raise unknown_hash(node)
        return chain_fields(self.hash_fields(_positional(fields), array), 0)

    def _hash_either(self, node: tree.Either, array: pa.Array) -> HashCodes:
        in_scala = ".Scala" in node.snapshot_class
        (is_left,) = fields_of(array, "is_left")
        sides = [("left", node.left), ("right", node.right)]
        left, right = self.hash_fields(sides, array, self.scala_hash if in_scala else None)
        codes = np.where(np.asarray(is_left.fill_null(False)), left, right)
        return class_hashes.mix_product([codes]) if in_scala else codes

    def _hash_row(self, fields: tuple[tree.Serializer, ...], array: pa.Array) -> HashCodes:
        start = [np.ones(len(array), np.int32)]
        codes = chain_fields(start + self.hash_fields(_positional(fields), array, self.element_hash), 0)
        if array.type.get_field_index("row_kind") < 0:
            return codes
        kinds = pc.index_in(*fields_of(array, "row_kind"), pa.array(ROW_KINDS, pa.string()))
        return numbers(kinds).astype(np.int32) * np.int32(31) + codes

    def hash_fields(
        self,
        fields: list[tuple[str, tree.Serializer]],
        array: pa.Array,
        hash_field: Callable[[tree.Serializer, pa.Array], HashCodes] | None = None,
    ) -> list[HashCodes]:
        """Hash codes of fields of a struct."""
        codes = []
        for (name, node), child in zip(fields, fields_of(array, *(name for name, _ in fields)), strict=True):
            try:
                codes.append((hash_field or self.hash)(node, child))
            except StateError as error:
                below = error.where.path
                error.where = replace(error.where, path=name if below is None else f"{name}.{below}")
                raise
        return codes

    def _hash_class(self, node: tree.Serializer, name: str, array: pa.Array) -> HashCodes:
        require_one_class(name, array)
        if name in self.class_hashes:
            codes: HashCodes = np.asarray(self.class_hashes[name](array))
        else:
            codes = self._evaluate(node, self.expressions[name], array)
        if codes.dtype != np.int32 or codes.shape != (len(array),):
            raise UsageError(f"the hash of {name} gave {codes.dtype}{list(codes.shape)}, not int32[{len(array)}]")
        return codes

    def _evaluate(self, node: tree.Serializer, expression: HashExpression, array: pa.Array) -> HashCodes:
        if isinstance(node, tree.Avro) and expression.text in class_hashes.PHYSICAL_TYPES:
            return class_hashes.hash_records(node, array, expression.text)

        def field_codes(name: str, how: How) -> tuple[HashCodes, pa.Array]:
            return self.field_codes(node, array, name, how)

        return expression.evaluate(field_codes, class_name(node) or "", len(array))

    def field_codes(self, node: tree.Serializer, array: pa.Array, name: str, how: How) -> tuple[HashCodes, pa.Array]:
        """Compute the hash codes that a field contributes to the `hashCode` of its class.

        Args:
            node: serializer of the class.
            array: its objects.
            name: of the field.
            how: which hash of the field.

        Returns:
            (i32[n], the values of the field).

        Raises:
            UsageError: there is no such field, or its hash differs from one JVM to the next.
        """
        nodes = field_nodes(node)
        if name not in nodes:
            raise UsageError(f"{class_name(node)} has no field {name}", hint=f"Its fields are {', '.join(nodes)}")
        found: list[pa.Array] = []

        def compute(child_node: tree.Serializer, child: pa.Array) -> HashCodes:
            found.append(child)
            return without_nulls(self._hash_as(child_node, child, how), child)

        if isinstance(node, tree.Avro):
            (child,) = fields_of(array, name)
            return without_nulls(class_hashes.hash_field(node, name, child), child), child
        (codes,) = self.hash_fields([(name, nodes[name])], array, compute)
        return codes, found[0]

    def _hash_as(self, node: tree.Serializer, array: pa.Array, how: How) -> HashCodes:
        inner = node.inner if isinstance(node, tree.Nullable) else node
        kind = inner.kind if isinstance(inner, tree.Basic) else None
        if how is How.SCALA:
            return self.scala_hash(inner, array)
        if how in (How.NAME, How.ORDINAL):
            if not isinstance(inner, tree.Enum):
                raise UsageError(f"{how.value}() in a hash expression takes a field that is an enum")
            if how is How.NAME:
                return hash_strings(array)
            return hash_ints(pc.index_in(array, pa.array(inner.constants, pa.string())))
        if how is How.INT:
            return _low_bits(array)
        if kind == BasicKind.BOOLEAN and how in _BOOLEANS:
            true, false = _BOOLEANS[how]
            return np.where(np.asarray(array.fill_null(False)), np.int32(true), np.int32(false))
        if (kind == BasicKind.FLOAT and how is How.IDE) or (
            kind in (BasicKind.FLOAT, BasicKind.DOUBLE) and how is How.ZERO
        ):
            array = pc.if_else(pc.equal(array, 0), pa.scalar(0, array.type), array)
        if how in _ARRAYS:
            return self.array_hash(inner, array)
        return self.hash(inner, array)

    def _chain_list(self, array: pa.Array, hash_elements: Callable[[pa.Array], HashCodes]) -> HashCodes:
        return chain(list_offsets(array), hash_elements(flatten(array)), 1)


_BOOLEANS = {How.BIT: (1, 0), How.IDE: (1, 0), How.COMMONS: (0, 1), How.LOMBOK: (79, 97)}
_ARRAYS = (How.ARRAY, How.LOMBOK, How.BOXED, How.IDE, How.KOTLIN)


def _positional(fields: tuple[tree.Serializer, ...]) -> list[tuple[str, tree.Serializer]]:
    return [(f"f{index}", node) for index, node in enumerate(fields)]


def _low_bits(array: pa.Array) -> HashCodes:
    """Cast integers to `int` as Java does, which keeps their lowest 32 bits."""
    if not pa.types.is_integer(array.type):
        raise UsageError("int() in a hash expression takes a field of whole numbers")
    return numbers(array).astype(np.int64).astype(np.int32)


def require_one_class(name: str, array: pa.Array) -> None:
    """Refuse objects of subclasses, which may hash in their own way.

    Raises:
        UnsupportedError: there is an object of another class.
    """
    if not pa.types.is_struct(array.type) or array.type.get_field_index("class") < 0:
        return
    (classes,) = fields_of(array, "class")
    others = pc.unique(classes.drop_null()).to_pylist()
    if set(others) - {name}:
        other = min(set(others) - {name})
        raise UnsupportedError(f"the keys of {name} include an object of {other}, whose hashCode may differ")


def _hash_binary_rows(node: tree.Serializer, array: pa.Array) -> HashCodes:
    """Compute `BinaryRowData.hashCode` of rows, from the bytes that their serializer writes."""
    columns = plan_columns(derive_layout(node, LayoutContext()))
    codes = np.zeros(len(array), np.int32)
    present = array.drop_null() if array.null_count else array
    encoded = columns.encode(conform(present, columns.type))
    found = np.empty(len(present), np.int32)
    hash_row_keys(encoded.data.ctypes.data, encoded.starts, encoded.stops, found)
    codes[np.asarray(array.is_valid())] = found
    return codes


def _encode_coded(coder: Coder, array: pa.Array) -> pa.Array:
    """Return the bytes that a coder of Beam writes for each value."""
    columns = plan_columns(derive_coder(coder))
    present = array.drop_null() if array.null_count else array
    encoded = columns.encode(conform(present, columns.type))
    spans = zip(encoded.starts, encoded.stops, strict=True)
    written = iter([encoded.data[start:stop].tobytes() for start, stop in spans])
    return pa.array([next(written) if each else None for each in array.is_valid().to_pylist()], pa.binary())


Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyHasher:
    """Computes the hash codes of keys; can be sent to other processes.

    Attributes:
        key_serializer: of the keys.
        layouts: context for deriving the layout of the keys.
        expressions: (class name, `hashCode`) of user classes, sorted by name.
    """

    key_serializer: tree.Serializer
    layouts: LayoutContext
    expressions: tuple[tuple[str, HashExpression], ...] = ()

    @property
    def has_kernel(self) -> bool:
        """Return whether a kernel hashes the keys from their bytes."""
        return _find_kernel(self.key_serializer) is not None

    def hash_keys(self, records: KeyedRecords, *, skip: int = 0) -> HashCodes:
        """Compute `hashCode()` of the key of each record.

        Args:
            records: of one state.
            skip: bytes in front of the key: 8 of timers, else 0.

        Returns:
            i32[n].

        Raises:
            FormatError: the bytes are not those of such keys.
            UnsupportedError: a key cannot be decoded, or is of a class whose hash is not known.
        """
        return self.hash_spans(
            records.data, records.key_starts + skip, records.key_ends, offset=records.offset, file=records.file
        )

    def hash_spans(
        self, data: Bytes, starts: Positions, ends: Positions, *, offset: int = 0, file: str | None = None
    ) -> HashCodes:
        """Compute `hashCode()` of keys at `data[starts[i]]`, which end at `ends[i]` or before.

        Args:
            data: u8.
            starts: i64[n].
            ends: i64[n].
            offset: position of `data` in its file, for errors.
            file: its name, for errors.

        Returns:
            i32[n].

        Raises:
            FormatError: the bytes are not those of such keys.
            UnsupportedError: a key cannot be decoded, or is of a class whose hash is not known.
            UsageError: a key lies outside `data`.
        """
        kernel = _find_kernel(self.key_serializer)
        if kernel is None and _is_open(self.key_serializer):
            return self._hash_by_class(self.key_serializer, data, starts, ends, offset=offset, file=file)
        if kernel is None:
            decoded = _columns(self.key_serializer, self.layouts).decode(data, starts, ends, exact=False, offset=offset)
            return self.hash_values(decoded.array)
        if len(starts) and (starts.min() < 0 or ends.max() > len(data) or bool((starts > ends).any())):
            raise UsageError(f"a key lies outside the {len(data)} bytes given")
        codes = np.empty(len(starts), np.int32)
        wrong = kernel(data.ctypes.data, np.ascontiguousarray(starts), np.ascontiguousarray(ends), codes)
        if wrong >= 0:
            where = Where(file=file, offset=offset + int(starts[wrong]))
            raise FormatError("the bytes of a key are not those of its serializer", where=where)
        return codes

    def _hash_by_class(
        self, key: tree.Kryo, data: Bytes, starts: Positions, ends: Positions, *, offset: int, file: str | None
    ) -> HashCodes:
        """Hash keys by the class that is stored with each of them, as `hash_spans`."""
        version: Version = 2 if self.layouts.kryo_version == 2 else 5
        codes = np.zeros(len(starts), np.int32)
        rows: dict[str, list[int]] = {}
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            with at(file=file):
                stored = read_kryo_class(Reader(data[start:end].tobytes()), key, version)
            if stored is None:
                raise FormatError("a key is null", where=Where(file=file, offset=offset + start))
            rows.setdefault(stored, []).append(row)
        for stored, chosen in rows.items():
            hasher = KeyHasher(replace(key, type_class=stored), self.layouts, self.expressions)
            if _is_open(hasher.key_serializer):
                raise unknown_kryo_hash(stored)
            codes[chosen] = hasher.hash_spans(data, starts[chosen], ends[chosen], offset=offset, file=file)
        return codes

    def hash_values(self, keys: pa.Array) -> HashCodes:
        """Compute `hashCode()` of keys in the Arrow type of their layout; errors as for `hash_codes`."""
        return Hasher(expressions=dict(self.expressions)).hash(self.key_serializer, keys)

    def assign_keys(self, records: KeyedRecords, max_parallelism: int, *, skip: int = 0) -> npt.NDArray[np.int32]:
        """Compute the key group of each record from the hash of its key; arguments and errors as for `hash_keys`."""
        return assign_key_groups(self.hash_keys(records, skip=skip), max_parallelism)


def make_key_hasher(
    key_serializer: tree.Serializer, layouts: LayoutContext, expressions: Mapping[str, HashExpression] | None = None
) -> KeyHasher:
    """Make a hasher of keys, and check everything that can be checked without keys.

    Args:
        key_serializer: of the keys.
        layouts: context for deriving the layout of the keys.
        expressions: by class name, the `hashCode` of user classes.

    Raises:
        UsageError: values of the type cannot be keys, or an expression names a field or a class that is not there.
        UnsupportedError: the hash of a class is not known.
    """
    given = dict(expressions or {})
    classes = {name: node for node in walk(key_serializer) if (name := class_name(node)) is not None}
    for name, expression in given.items():
        if name not in classes:
            known = ", ".join(classes) or "none"
            raise UsageError(
                f"a hash is given for {name}, which is no part of the key", hint=f"Classes of the key: {known}"
            )
        names = field_nodes(classes[name])
        unknown = [each for each in expression.fields if each not in names]
        if unknown:
            raise UsageError(
                f"{name} has no field {', '.join(unknown)}, which its hash {expression} takes",
                hint=f"Its fields are {', '.join(names)}",
            )
    hasher = KeyHasher(key_serializer, layouts, tuple(sorted(given.items(), key=lambda each: each[0])))
    if _find_kernel(key_serializer) is None and not _is_open(key_serializer):
        try:
            hasher.hash_values(pa.array([], _columns(key_serializer, layouts).type))
        except UnsupportedError:
            missing = find_unknown_classes(key_serializer, given)
            if not missing:
                raise
            raise UnsupportedError(
                f"the hashCode of {', '.join(missing)} is code of the user's that no snapshot holds",
                hint="It can be found from the snapshot, or given as an expression such as objects(a, b)",
            ) from None
    return hasher


def find_key_group(
    key_serializer: tree.Serializer, layouts: LayoutContext, key: Bytes, max_parallelism: int
) -> KeyGroupRange | None:
    """Return the key group of a key, as a range; None if no kernel hashes keys of this type (see `KeyHasher`).

    Args:
        key_serializer: of the key.
        layouts: context for deriving the layout of the key.
        key: u8, the key as its serializer writes it.
        max_parallelism: number of key groups.
    """
    hasher = KeyHasher(key_serializer, layouts)
    if not hasher.has_kernel:
        return None
    hashes = hasher.hash_spans(key, np.zeros(1, np.int64), np.full(1, len(key), np.int64))
    return KeyGroupRange(int(assign_key_groups(hashes, max_parallelism)[0]), 1)


def _is_open(serializer: tree.Serializer) -> TypeGuard[tree.Kryo]:
    """Return whether the hash of a Kryo key depends on the class stored with it, as for the type `Object`."""
    return isinstance(serializer, tree.Kryo) and not is_hashed(serializer.type_class)


@lru_cache(maxsize=64)
def _columns(serializer: tree.Serializer, layouts: LayoutContext) -> ColumnCodec:
    return plan_columns(derive_layout(serializer, layouts))


def _find_kernel(serializer: tree.Serializer) -> Callable[..., int] | None:
    match serializer:
        case tree.Basic(kind=BasicKind.STRING):
            return hash_string_keys
        case tree.Basic(kind=BasicKind.LONG):
            return hash_long_keys
        case tree.Basic(kind=BasicKind.INT):
            return hash_int_keys
        case tree.RowData() | tree.BinaryRow():
            return hash_row_keys
        case _:
            return None
