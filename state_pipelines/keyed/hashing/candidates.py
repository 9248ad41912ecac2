"""Candidates for the `hashCode` of a class: the patterns that tools and people write, over orders of its fields.

A candidate is a scheme (start, multiplier, how fields are joined), a variant (which hash of each field counts) and an
order of some of the fields. The kernel tries all orders of a scheme and variant on a few keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import njit
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.keyed.hashing.class_hashes import (
    PATTERNS,
    Field,
    HashExpression,
    How,
    JavaCall,
    JavaOperation,
    JavaOperator,
    Number,
    Term,
    hash_name,
)
from state_pipelines.keyed.hashing.value_hashes import class_name, field_nodes
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import ARRAYS, BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from state_pipelines.keyed.hashing.basic_hashes import HashCodes
    from state_pipelines.keyed.hashing.value_hashes import Hasher

CHAIN, XOR_CHAIN, SUM, XOR, SCALA, SCALA_NAMED = range(6)

MOST_ORDERS = 110_000
"""About how many orders of fields are tried at most: all orders of all subsets of up to 8 fields (109,600)."""
_MOST_SUBSETS = 14
_MOST_BOOLEANS = 3

_ALONE = How.HASH.value
"""Name of the scheme that takes one field alone."""
_NETBEANS_STARTS = (3, 5, 7)
_NETBEANS_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


@dataclass(frozen=True)
class HashScheme:
    """A way in which `hashCode` methods join the hashes of fields, such as `Objects.hash`.

    Attributes:
        pattern: name of its pattern in hash expressions; if there is none, an operator, or `_ALONE` for a single field.
        mode: the computation in the kernel, `CHAIN` to `SCALA_NAMED`.
        start: first code of a chain.
        multiplier: of a chain.
        common: tried even if the hashes of several classes are searched together.
    """

    pattern: str
    mode: int = CHAIN
    start: int = 0
    multiplier: int = 31
    common: bool = False

    @property
    def how(self) -> How:
        """Default hash of the fields in this scheme."""
        return PATTERNS[self.pattern].how if self.pattern in PATTERNS else How.HASH

    @property
    def null(self) -> int:
        """Hash code of a null field in this scheme."""
        return PATTERNS[self.pattern].null if self.pattern in PATTERNS else 0

    def express(self, terms: Sequence[Field]) -> HashExpression:
        """Return the expression that joins the fields in this order."""
        if self.pattern in (JavaOperator.ADD, JavaOperator.XOR, _ALONE):
            term: Term = terms[0]
            for each in terms[1:]:
                term = JavaOperation(JavaOperator(self.pattern), term, each)
            return HashExpression(term if len(terms) > 1 or terms[0].how else Field(terms[0].name, How.HASH))
        numbers = (Number(self.start), Number(self.multiplier)) if PATTERNS[self.pattern].start is None else ()
        return HashExpression(JavaCall(self.pattern, (*numbers, *terms)))


SCHEMES = (
    HashScheme(_ALONE, common=True),
    HashScheme("objects", start=1, common=True),
    HashScheme("record", common=True),
    HashScheme("kotlin"),
    HashScheme("ide", common=True),
    HashScheme("lombok", start=1, multiplier=59, common=True),
    HashScheme("commons", start=17, multiplier=37, common=True),
    HashScheme("chain", start=17, common=True),
    HashScheme("autovalue", XOR_CHAIN, 1, 1000003, common=True),
    HashScheme("immutables", start=5381, multiplier=33),
    HashScheme("scala212", SCALA, common=True),
    HashScheme("scala213", SCALA_NAMED, common=True),
    HashScheme(JavaOperator.ADD, SUM),
    HashScheme(JavaOperator.XOR, XOR),
    HashScheme("idechain", start=1),
    HashScheme("idechain", start=17),
    HashScheme("idechain", start=17, multiplier=37),
    *(HashScheme("chain", start=start) for start in (3, 5, 7, 11, 13, 19, 23, 37)),
    HashScheme("chain", start=17, multiplier=37),
    HashScheme("chain", start=17, multiplier=23),
    HashScheme("chain", start=23, multiplier=37),
    HashScheme("chain", start=1, multiplier=37),
    HashScheme("chain", start=1, multiplier=17),
    HashScheme("chain", start=0, multiplier=37),
    HashScheme("chain", start=0, multiplier=17),
    HashScheme("chain", start=1, multiplier=277),
    HashScheme("chain", start=5381, multiplier=33),
    *(
        HashScheme("idechain", start=start, multiplier=prime)
        for start, prime in product(_NETBEANS_STARTS, _NETBEANS_PRIMES)
    ),
)
"""Schemes to try, the likely ones first: of schemes that give the same hashes, the first is reported."""

COMMON_SCHEMES = tuple(scheme for scheme in SCHEMES if scheme.common)
"""Schemes that are tried for several classes at once."""

ODD_SCHEMES = tuple(
    HashScheme(pattern, start=start, multiplier=multiplier)
    for pattern in ("commons", "chain")
    for start, multiplier in product(range(1, 100, 2), range(3, 100, 2))
)
"""Schemes with all pairs of small odd numbers as start and multiplier, tried if no other scheme fits."""


@dataclass(frozen=True)
class Orders:
    """Orders of subsets of fields in which a `hashCode` may join the hashes of the fields.

    Attributes:
        fields: i8[n, m], indices of the fields.
        sizes: i8[n], number of fields in each row of `fields`; the rest of the row is unused.
        complete: whether these are all orders of all subsets.
    """

    fields: npt.NDArray[np.int8]
    sizes: npt.NDArray[np.int8]
    complete: bool

    def __len__(self) -> int:
        """Number of orders."""
        return len(self.sizes)

    def select(self, rows: npt.NDArray[np.bool_]) -> Orders:
        """Return some of the orders."""
        return Orders(self.fields[rows], self.sizes[rows], self.complete)


def list_orders(fields: int, most: int = MOST_ORDERS) -> Orders:
    """List the orders in which a hash may combine a number of fields; not all of them where there are too many.

    Then the result has all orders of small subsets, and of the other subsets only the order of the snapshot and its
    reverse; with more than 14 fields only of the subsets that leave out at most one field.

    Args:
        fields: how many there are.
        most: about how many orders are wanted.
    """
    found: dict[tuple[int, ...], None] = {}
    everything = range(fields)
    complete = True
    for size in range(1, fields + 1):
        count = len(found)
        for index in range(size):
            count = count if index else 1
            count *= fields - index
        if len(found) + count > most:
            complete = False
            break
        found.update(dict.fromkeys(permutations(everything, size)))
    if not complete:
        sizes = range(1, fields + 1) if fields <= _MOST_SUBSETS else (fields - 1, fields)
        for size in sizes:
            for each in combinations(everything, size):
                found.update(dict.fromkeys((each, each[::-1])))
    rows = list(found)
    table = np.zeros((len(rows), fields), np.int8)
    lengths = np.array([len(row) for row in rows], np.int8)
    for size in set(lengths.tolist()):
        chosen = np.flatnonzero(lengths == size)
        table[chosen, :size] = np.array([rows[row] for row in chosen.tolist()], np.int8)
    return Orders(table, lengths, complete)


@dataclass(frozen=True)
class Trial:
    """A scheme, and a hash for each field; all orders of the fields are tried together.

    Attributes:
        scheme: how the hashes of fields are joined.
        terms: the hash of each field in an expression.
        codes: i32[occurrences, fields, keys], hash codes of the fields.
    """

    scheme: HashScheme
    terms: tuple[Field, ...]
    codes: npt.NDArray[np.int32]

    def pick(self, orders: Orders) -> Orders:
        """Return the orders worth trying: of a sum or XOR one per subset of fields, of a single field one per field."""
        if self.scheme.pattern == _ALONE:
            return orders.select(orders.sizes == 1)
        if self.scheme.mode in (SUM, XOR):
            ascending = (np.diff(orders.fields, axis=1) > 0) | (
                np.arange(1, orders.fields.shape[1])[None, :] >= orders.sizes[:, None]
            )
            return orders.select((orders.sizes > 1) & ascending.all(axis=1))
        return orders

    def express(self, orders: Orders, row: int) -> HashExpression:
        """Return the expression for the order in a row of `orders`."""
        return self.scheme.express([self.terms[field] for field in orders.fields[row, : orders.sizes[row]].tolist()])


def list_trials(
    node: tree.Serializer, occurrences: Sequence[pa.Array], hasher: Hasher, schemes: Sequence[HashScheme] = SCHEMES
) -> Iterator[Trial]:
    """Yield the trials for a class: all schemes with all variants, without those that would repeat an earlier trial.

    Args:
        node: serializer of the class.
        occurrences: objects of the class in the keys, one array per position in the key.
        hasher: computes the hash codes of the fields.
        schemes: the schemes that are tried.

    Raises:
        UnsupportedError: the class has no field that could be hashed.
    """
    names = list(field_nodes(node))
    seen: set[tuple[bool, int, int, int, bytes]] = set()
    columns: dict[tuple[str, How, int], HashCodes | None] = {}
    found = False
    for scheme in schemes:
        for hows in _list_variants(node, names, scheme, occurrences):
            terms, codes = [], []
            for name, how in zip(names, hows, strict=True):
                mark_of_column = (name, how or scheme.how, scheme.null)
                if mark_of_column not in columns:
                    columns[mark_of_column] = _field_matrix(node, occurrences, hasher, *mark_of_column)
                column = columns[mark_of_column]
                if column is not None:
                    terms.append(Field(name, how))
                    codes.append(column)
            if not terms:
                continue
            found = True
            matrix = np.ascontiguousarray(np.stack(codes, axis=1))
            mark = (scheme.pattern == _ALONE, scheme.mode, scheme.start, scheme.multiplier, matrix.tobytes())
            if mark not in seen:
                seen.add(mark)
                yield Trial(scheme, tuple(terms), matrix)
    if not found:
        raise UnsupportedError(f"{class_name(node)} has no field whose hash is the same in every JVM")


def _list_variants(
    node: tree.Serializer, names: list[str], scheme: HashScheme, occurrences: Sequence[pa.Array]
) -> Iterator[tuple[How | None, ...]]:
    """Yield the variants of a scheme: for each field the way it is hashed; None is the default of the scheme."""
    choices: list[tuple[How | None, ...]] = []
    nodes = field_nodes(node)
    booleans = sum(_kind(nodes[name]) == BasicKind.BOOLEAN for name in names)
    for name in names:
        inner = nodes[name].inner if isinstance(nodes[name], tree.Nullable) else nodes[name]  # type: ignore[attr-defined]
        kind = _kind(inner)
        if isinstance(inner, tree.Enum):
            choices.append((How.NAME, How.ORDINAL))
        elif isinstance(inner, tree.GenericArray) or kind in ARRAYS:
            choices.append((How.ARRAY,))
        elif (
            kind == BasicKind.BOOLEAN
            and scheme.how in (How.IDE, How.LOMBOK, How.COMMONS)
            and booleans <= _MOST_BOOLEANS
        ):
            choices.append((None, How.HASH if scheme.how is How.IDE else How.BOXED))
        elif kind == BasicKind.LONG and scheme.pattern in (_ALONE, JavaOperator.ADD, JavaOperator.XOR, "ide"):
            choices.append((None, How.INT))
        elif kind == BasicKind.DOUBLE and scheme.how is How.IDE:
            choices.append((None, How.ZERO))
        else:
            choices.append((None,))
    kept = list(product(*choices)) if np.prod([len(each) for each in choices]) <= 64 else []
    return iter(kept or [tuple(each[0] for each in choices), tuple(each[-1] for each in choices)])


def _kind(node: tree.Serializer) -> BasicKind | None:
    return node.kind if isinstance(node, tree.Basic) else None


def _field_matrix(
    node: tree.Serializer, occurrences: Sequence[pa.Array], hasher: Hasher, name: str, how: How, null: int
) -> HashCodes | None:
    """Compute the hash codes of a field, i32[occurrences, keys]; None if it cannot be hashed in the way `how`."""
    rows = []
    for objects in occurrences:
        try:
            codes, values = hasher.field_codes(node, objects, name, how)
        except (UsageError, UnsupportedError):
            return None
        if null and values.null_count:
            codes = np.where(np.asarray(values.is_valid()), codes, np.int32(null))
        rows.append(codes)
    return np.stack(rows)


def screen(
    trial: Trial,
    orders: Orders,
    offset: HashCodes,
    scales: HashCodes,
    key_groups: npt.NDArray[np.int32],
    max_parallelism: int,
    prefix_class: str,
    *,
    misses: int = 0,
) -> list[tuple[int, int]]:
    """Find the orders of fields whose hash gives the key groups of all keys, except for at most `misses` keys.

    The hash of a key is `offset + Σ scale * code` over the objects of the class in the key, `code` their `hashCode`.

    Args:
        trial: the scheme, and the hash codes of the fields.
        orders: the orders of the fields to try.
        offset: i32[keys].
        scales: i32[occurrences, keys].
        key_groups: i32[keys], the key groups in which the snapshot has the keys.
        max_parallelism: number of key groups.
        prefix_class: name of the class, which some schemes mix in.
        misses: number of keys that may be in another key group than the hash gives.

    Returns:
        (order, number of keys in another key group than the hash gives) of each order found; at most 4096.
    """
    found = np.empty((4096, 2), np.int64)
    count = screen_orders(
        orders.fields,
        orders.sizes,
        trial.scheme.start,
        trial.scheme.multiplier,
        trial.scheme.mode,
        hash_name(prefix_class),
        trial.codes,
        np.ascontiguousarray(offset),
        np.ascontiguousarray(scales),
        np.ascontiguousarray(key_groups),
        max_parallelism,
        misses,
        found,
    )
    return [(int(row), int(missed)) for row, missed in found[:count]]


def join(trial: Trial, orders: Orders, prefix_class: str) -> npt.NDArray[np.int32]:
    """Compute the hash codes of objects with every order of fields, i32[occurrences, orders, keys].

    The arguments are those of `screen`.
    """
    scheme, codes = trial.scheme, trial.codes
    joined = np.empty((codes.shape[0], len(orders), codes.shape[2]), np.int32)
    prefix = hash_name(prefix_class)
    join_orders(orders.fields, orders.sizes, scheme.start, scheme.multiplier, scheme.mode, prefix, codes, joined)
    return joined


@njit(cache=True, nogil=True)
def _mix(code, data):  # type: ignore[no-untyped-def]
    word = (data & 0xFFFFFFFF) * 0xCC9E2D51 & 0xFFFFFFFF
    word = (word << 15 | word >> 17) & 0xFFFFFFFF
    code ^= word * 0x1B873593 & 0xFFFFFFFF
    code = (code << 13 | code >> 19) & 0xFFFFFFFF
    return (code * 5 + 0xE6546B64) & 0xFFFFFFFF


@njit(cache=True, nogil=True)
def _finish(code):  # type: ignore[no-untyped-def]
    code ^= code >> 16
    code = code * 0x85EBCA6B & 0xFFFFFFFF
    code ^= code >> 13
    code = code * 0xC2B2AE35 & 0xFFFFFFFF
    return code ^ code >> 16


@njit(cache=True, nogil=True)
def _join(fields, start, multiplier, mode, prefix, codes):  # type: ignore[no-untyped-def]
    """Return the hash code of one object from the `codes` of its fields, in the order of the indices `fields`."""
    code = np.int64(start)
    if mode >= 4:
        code = np.int64(0xCAFEBABE)
        if mode == 5:
            code = _mix(code, np.int64(prefix))
    elif mode >= 2:
        code = np.int64(0)
    for i in range(len(fields)):
        each = np.int64(codes[fields[i]])
        if mode == 0:
            code = (code * multiplier + each) & 0xFFFFFFFF
        elif mode == 1:
            code = ((code * multiplier) ^ each) & 0xFFFFFFFF
        elif mode == 2:
            code = code + each
        elif mode == 3:
            code = code ^ each
        else:
            code = _mix(code, each)
    if mode >= 4:
        code = _finish(code ^ np.int64(len(fields)))
    return code


@njit(cache=True, nogil=True)
def join_orders(orders, sizes, start, multiplier, mode, prefix, codes, joined):  # type: ignore[no-untyped-def]
    """Compute the hash codes of objects with every order of fields, into `joined`, i32[occurrences, n, keys].

    The other arguments are those of `screen_orders`.
    """
    for index in range(codes.shape[0]):
        for order in range(len(sizes)):
            for key in range(codes.shape[2]):
                fields = orders[order, : sizes[order]]
                joined[index, order, key] = _join(fields, start, multiplier, mode, prefix, codes[index, :, key])


@njit(cache=True, nogil=True)
def screen_orders(  # type: ignore[no-untyped-def]
    orders, sizes, start, multiplier, mode, prefix, codes, offset, scales, key_groups, max_parallelism, misses, found
):
    """Find the orders whose hashes give the key groups, as `screen` does.

    Args:
        orders: i8[n, fields].
        sizes: i8[n].
        start: of a chain.
        multiplier: of a chain.
        mode: CHAIN … SCALA_NAMED.
        prefix: hash of the name of the class.
        codes: i32[occurrences, fields, keys].
        offset: i32[keys].
        scales: i32[occurrences, keys].
        key_groups: i32[keys].
        max_parallelism: number of key groups.
        misses: number of keys that may be in another key group than the hash gives.
        found: i64[k, 2], filled with order and misses.

    Returns:
        How many rows of `found` are filled.
    """
    count = 0
    for order in range(len(sizes)):
        size = sizes[order]
        missed = 0
        for key in range(len(key_groups)):
            total = np.int64(offset[key])
            for index in range(codes.shape[0]):
                code = _join(orders[order, :size], start, multiplier, mode, prefix, codes[index, :, key])
                total += code * np.int64(scales[index, key])
            mixed = np.int64(np.int32(_finish(_mix(np.int64(0), total & 0xFFFFFFFF) ^ 4)))
            group = (abs(mixed) if mixed != -2147483648 else 0) % max_parallelism
            if group != key_groups[key]:
                missed += 1
                if missed > misses:
                    break
        if missed <= misses:
            if count == len(found):
                return count
            found[count, 0] = order
            found[count, 1] = missed
            count += 1
    return count
