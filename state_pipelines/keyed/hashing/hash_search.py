"""Search for the `hashCode` of user classes, from the key groups that a snapshot records.

Every key lies in the key group that its hash gives. A candidate that gives the key groups of so many keys that chance
is out of the question is the hash; of several such candidates all must give the same codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, UnsupportedError, UsageError, Where
from state_pipelines.keyed.hashing.candidates import (
    COMMON_SCHEMES,
    MOST_ORDERS,
    ODD_SCHEMES,
    SCHEMES,
    HashScheme,
    Orders,
    Trial,
    join,
    list_orders,
    list_trials,
    screen,
)
from state_pipelines.keyed.hashing.class_hashes import (
    GENERIC,
    PHYSICAL_TYPES,
    HashExpression,
    How,
    parse_hash_expression,
)
from state_pipelines.keyed.hashing.value_hashes import (
    ClassHash,
    Hasher,
    field_nodes,
    find_unknown_classes,
    make_key_hasher,
)
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.record_layout import Measure, take_bytes
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.hashing.basic_hashes import HashCodes
    from state_pipelines.keyed.record_layout import KeyedRecords

CHANCE = 1e-9
"""A candidate is proven when chance would give one like it more rarely than this."""


@dataclass(frozen=True)
class ClassFinding:
    """The `hashCode` found for one class.

    Attributes:
        class_name: the class.
        expression: its `hashCode`; None when it is not proven.
        codes: number of distinct hash codes of its objects in the keys tried.
    """

    class_name: str
    expression: HashExpression | None
    codes: int = 0


@dataclass(frozen=True)
class HashFinding:
    """Result of a search for the `hashCode` of the user classes in the keys of an operator.

    Attributes:
        key: the type of the keys, as readable text.
        classes: user classes in the key whose hash had to be found; none when the hash of the key is known.
        keys: distinct keys that were tried.
        matched: keys in the key group that the hash gives; 0 when no hash was found.
        max_parallelism: number of key groups.
        candidates: how many hashes were tried.
        alternatives: other hashes that give the same code for every key tried.
        near: where no hash fits, the best ones, with the share of keys in the key group that the hash gives.
        complete: whether all orders of the fields were tried.
        reason: why no hash is proven; empty if the hash is proven.
    """

    key: str
    classes: tuple[ClassFinding, ...]
    keys: int
    matched: int
    max_parallelism: int
    candidates: int
    alternatives: tuple[str, ...] = ()
    near: tuple[tuple[str, float], ...] = ()
    complete: bool = True
    reason: str = ""

    @property
    def proven(self) -> bool:
        """Whether the hash of every key can be computed."""
        return not self.reason

    @property
    def expressions(self) -> dict[str, HashExpression]:
        """The proven hashes by class name, as `make_key_hasher` takes them."""
        return {each.class_name: each.expression for each in self.classes if each.expression is not None}

    def explain(self) -> str:
        """The findings and their evidence, in sentences."""
        lines = []
        if not self.classes and self.proven:
            lines.append(f"the hash of {self.key} is known; it gives the key groups of all {self.keys} keys tried")
        lines += [
            f"hashCode of {each.class_name} is {each.expression}: it gives the key groups of all {self.matched} "
            f"distinct keys tried ({each.codes} distinct codes of the class, {self.max_parallelism} key groups), "
            f"found among {self.candidates} candidates"
            for each in self.classes
            if each.expression is not None
        ]
        if self.proven and self.alternatives:
            lines.append(f"the same for every key tried: {', '.join(self.alternatives)}")
        if self.reason:
            names = ", ".join(each.class_name for each in self.classes) or self.key
            lines.append(f"the hashCode of {names} is not proven: {self.reason}")
        if self.near:
            shares = ", ".join(f"{text} ({share:.0%} of keys)" for text, share in self.near)
            lines.append(f"nearest: {shares}")
        if not self.complete and self.reason:
            lines.append("not every order of the fields was tried, because there are too many fields")
        return "; ".join(lines)


def count_needed_keys(candidates: int, max_parallelism: int) -> int:
    """Number of distinct keys that prove a hash among so many candidates; 0 when no number does (one key group)."""
    if max_parallelism < 2:
        return 0
    return math.floor((math.log(max(candidates, 1)) - math.log(CHANCE)) / math.log(max_parallelism)) + 1


def is_proven(candidates: int, distinct: int, max_parallelism: int) -> bool:
    """Return whether it is too unlikely that one of the candidates fits all keys by chance.

    The probability is at most `candidates * max_parallelism ** -distinct`; it must be less than `CHANCE`.
    """
    return math.log(max(candidates, 1)) - distinct * math.log(max_parallelism) < math.log(CHANCE)


MOST_KEYS = 20_000
"""Maximum number of distinct keys that are tried."""


def gather_keys(
    key_serializer: tree.Serializer, layouts: LayoutContext, samples: Iterable[KeyedRecords], *, skip: int = 0
) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Gather the distinct keys of records, as bytes, and their key groups.

    Args:
        key_serializer: of the keys.
        layouts: context for deriving the layout of the keys.
        samples: records, taken until there are `MOST_KEYS` distinct keys.
        skip: bytes in front of each key.

    Raises:
        FormatError: one key lies in two key groups.
    """
    layout = derive_layout(key_serializer, layouts)
    measure = Measure(lay.Struct((("key", lay.Span(layout)), ("rest", lay.Span(lay.Rest())))))
    found: dict[bytes, int] = {}
    for records in samples:
        for start in range(0, len(records), MOST_KEYS):
            sample = records.cut(start, start + MOST_KEYS)
            spans = measure.spans(
                sample.data, sample.key_starts + skip, sample.key_ends, offset=sample.offset, name=sample.file
            ).field("key")
            starts, stops = (spans.field(name).to_numpy() for name in ("start", "stop"))
            encoded = take_bytes(sample.data, starts, stops).dictionary_encode()
            indexes = encoded.indices.to_numpy()
            _, firsts = np.unique(indexes, return_index=True)
            groups = sample.key_groups[firsts]
            moved = [*encoded.dictionary.take(pa.array(indexes[groups[indexes] != sample.key_groups])).to_pylist()][:1]
            for key, key_group in zip(encoded.dictionary.to_pylist(), groups.tolist(), strict=True):
                if found.setdefault(key, key_group) != key_group:
                    moved.append(key)
            if moved:
                raise FormatError(f"the key {moved[0].hex()} lies in two key groups", where=Where(file=sample.file))
            if len(found) >= MOST_KEYS:
                break
        if len(found) >= MOST_KEYS:
            break
    picked = list(islice(found.items(), MOST_KEYS))
    return pa.array([key for key, _ in picked], pa.binary()), np.array([group for _, group in picked], np.int32)


def bytes_of_keys(keys: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (u8 data, i64[n] starts, i64[n] ends) of keys in a binary array."""
    encoded = plan_columns(lay.Rest()).encode(keys)
    return encoded.data, encoded.starts, encoded.stops


_SCREENED = 64
_NEAR = 5
_MOST_INNER = 3_000
_MOST_FITS = 10_000
_ODD_ORDERS = 2_000
_MOST_CANDIDATES = 200_000_000

KeyGroups = npt.NDArray[np.int32]


def find_class_hashes(
    key_serializer: tree.Serializer,
    layouts: LayoutContext,
    samples: Iterable[KeyedRecords],
    max_parallelism: int,
    *,
    known: Mapping[str, HashExpression] | None = None,
    skip: int = 0,
) -> HashFinding:
    """Find the `hashCode` of the user classes in a key.

    Args:
        key_serializer: of the keys.
        layouts: context for deriving the layout of the keys.
        samples: records of the operator, taken until there are enough distinct keys.
        max_parallelism: number of key groups.
        known: hashes that are given, by class name; they are checked, too.
        skip: bytes in front of the key of each record: 8 of timers, else 0.

    Returns:
        What was found; `reason` says why nothing is proven.

    Raises:
        FormatError: the bytes are not those of such keys, or one key lies in two key groups.
        UnsupportedError: keys cannot be decoded.
        UsageError: values of the type cannot be keys.
    """
    keys, key_groups = gather_keys(key_serializer, layouts, samples, skip=skip)
    columns = plan_columns(derive_layout(key_serializer, layouts))
    search = _Search(
        key_serializer, columns.decode(*bytes_of_keys(keys)).array, key_groups, max_parallelism, dict(known or {})
    )
    try:
        return search.run(layouts)
    except UnsupportedError as error:
        return search.refuse(error.what)


@dataclass(frozen=True)
class _Fit:
    """`hashCode` expressions by class that give the sampled keys their stored key groups, except for `misses` keys."""

    expressions: dict[str, HashExpression]
    misses: int


class _Search:
    """The search over the keys of one operator."""

    def __init__(
        self,
        serializer: tree.Serializer,
        keys: pa.Array,
        key_groups: KeyGroups,
        max_parallelism: int,
        known: dict[str, HashExpression],
    ) -> None:
        self.serializer = serializer
        self.keys = keys
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.known = known
        self.unknown = find_unknown_classes(serializer, known)
        self.candidates = 1
        self.complete = True
        # Too few keys to prove even one candidate: candidates are only counted, to report how many keys are needed.
        self.hopeless = self._needs_more(len(keys))
        # A random sample, since adjacent keys are mostly of the same key group.
        chosen = np.random.default_rng(0).permutation(len(keys))[:_SCREENED]
        self.few = keys.take(pa.array(chosen))
        self.few_groups = key_groups[chosen]

    def refuse(self, reason: str, near: Sequence[tuple[str, float]] = ()) -> HashFinding:
        """Return a finding without a proven hash, for the given reason."""
        classes = tuple(ClassFinding(name, None) for name in self.unknown)
        return self._finding(classes, 0, reason=reason, near=tuple(near))

    def _finding(
        self,
        classes: tuple[ClassFinding, ...],
        matched: int,
        *,
        alternatives: tuple[str, ...] = (),
        near: tuple[tuple[str, float], ...] = (),
        reason: str = "",
    ) -> HashFinding:
        return HashFinding(
            describe(self.serializer),
            classes,
            len(self.keys),
            matched,
            self.max_parallelism,
            self.candidates,
            alternatives,
            near,
            self.complete,
            reason,
        )

    def run(self, layouts: LayoutContext) -> HashFinding:
        """Search the hashes of the user classes in the keys; see `find_class_hashes`."""
        if not self.unknown:
            return self._check_known(layouts)
        if not len(self.keys):
            return self.refuse("there are no keys")
        if self.max_parallelism < 2:
            return self.refuse("with one key group nothing can be proven")
        near: dict[str, float] = {}
        confirmed = self._confirm(self._try_all(0), near)
        if self._needs_more(len(self.keys)):
            return self.refuse(self._tell_needed(len(self.keys)))
        if not confirmed and len(self.unknown) == 1:
            (target,) = self.unknown
            confirmed = self._confirm(self._try_class(target, {}, 0, ODD_SCHEMES, _ODD_ORDERS), near)
        if not confirmed:
            return self.refuse(f"none of {self.candidates} candidates gives all key groups", self._find_near(near))
        if len(confirmed) > 1:
            texts = " and ".join(_tell(each[0]) for each in confirmed.values())
            return self.refuse(f"it is ambiguous: {texts} give the key groups of all keys, but other hashes")
        return self._judge(*confirmed.values())

    def _confirm(self, fits: Iterable[_Fit], near: dict[str, float]) -> dict[bytes, list[dict[str, HashExpression]]]:
        """Return the candidates that give the key groups of all keys, grouped by the hash codes of the keys."""
        confirmed: dict[bytes, list[dict[str, HashExpression]]] = {}
        tried: set[str] = set()
        for fit in islice(fits, _MOST_FITS):
            text = _tell(fit.expressions)
            if text in tried:
                continue
            tried.add(text)
            codes = self._codes(fit.expressions, self.keys)
            share = float(np.mean(assign_key_groups(codes, self.max_parallelism) == self.key_groups))
            if share == 1:
                confirmed.setdefault(codes.tobytes(), []).append(fit.expressions)
            else:
                near[text] = share
        return confirmed

    def _judge(self, fitting: list[dict[str, HashExpression]]) -> HashFinding:
        best, *others = fitting
        counts = self._count_codes(best)
        if self._needs_more(min(counts.values())):
            name = min(counts, key=lambda each: counts[each])
            what = f"{_tell(best)} gives all key groups, but objects of {name} have {counts[name]} distinct codes only"
            return self.refuse(f"{what}; {self._tell_needed(counts[name])}")
        classes = tuple(ClassFinding(name, best[name], counts[name]) for name in best)
        return self._finding(classes, len(self.keys), alternatives=tuple(_tell(each) for each in others[:5]))

    def _check_known(self, layouts: LayoutContext) -> HashFinding:
        self.candidates = 1
        hasher = make_key_hasher(self.serializer, layouts, self.known)
        groups = assign_key_groups(hasher.hash_values(self.keys), self.max_parallelism)
        matched = int((groups == self.key_groups).sum())
        reason = ""
        if matched < len(self.keys):
            reason = f"only {matched} of {len(self.keys)} keys lie in the key group that the hash gives"
        return self._finding((), matched, reason=reason)

    def _needs_more(self, distinct: int) -> bool:
        return not is_proven(self.candidates, distinct, self.max_parallelism)

    def _tell_needed(self, distinct: int) -> str:
        needed = count_needed_keys(self.candidates, self.max_parallelism)
        return f"{distinct} distinct keys prove nothing among {self.candidates} candidates, {needed} would be needed"

    def _codes(self, expressions: Mapping[str, HashExpression], keys: pa.Array) -> HashCodes:
        return Hasher(expressions={**self.known, **expressions}).hash(self.serializer, keys)

    def _count_codes(self, expressions: dict[str, HashExpression]) -> dict[str, int]:
        """Count the distinct hash codes of the objects of each class."""
        seen: dict[str, list[HashCodes]] = {name: [] for name in expressions}
        given = {**self.known, **expressions}

        for name, codes in seen.items():
            spy = _recording(_direct(self.unknown[name], given), codes)
            Hasher({name: spy}, given).hash(self.serializer, self.keys)
        return {name: len(np.unique(np.concatenate(codes))) if codes else 0 for name, codes in seen.items()}

    def _find_near(self, near: dict[str, float]) -> list[tuple[str, float]]:
        if self.max_parallelism > 3 and len(self.few) > 8:
            before = self.candidates
            for fit in islice(self._try_all(len(self.few) // 2), 50):
                text = _tell(fit.expressions)
                if text not in near:
                    codes = self._codes(fit.expressions, self.keys)
                    groups = assign_key_groups(codes, self.max_parallelism)
                    near[text] = float(np.mean(groups == self.key_groups))
            self.candidates = before
        return sorted(near.items(), key=lambda each: -each[1])[:_NEAR]

    def _try_all(self, misses: int) -> Iterator[_Fit]:
        """Yield all candidates that give the key groups of the sampled keys, with at most `misses` exceptions."""
        names = list(self.unknown)
        target = max(names, key=lambda name: (len(field_nodes(self.unknown[name])), names.index(name)))
        others = [name for name in names if name != target]
        if not others:
            yield from self._try_class(target, {}, misses, SCHEMES)
            return
        inner = [list(islice(self._list_likely(name), _MOST_INNER)) for name in others]
        for chosen in product(*inner):
            if self.candidates > _MOST_CANDIDATES:
                self.complete = False
                return
            yield from self._try_class(target, dict(zip(others, chosen, strict=True)), misses, COMMON_SCHEMES)

    def _list_likely(self, name: str) -> Iterator[HashExpression]:
        """Yield likely candidates for a class other than the one for which all are tried, the most likely first."""
        node = self.unknown[name]
        if isinstance(node, tree.Avro):
            yield from map(parse_hash_expression, PHYSICAL_TYPES)
            return
        calls, _, _ = self._probe(name, {other: None for other in self.unknown if other != name})
        if not calls:
            return
        orders = list_orders(len(field_nodes(node)), 400)
        self.complete &= orders.complete
        # A field whose class has an unknown hash, too, counts as 0 here: of the trials only the expressions are used,
        # not the hash codes.
        hasher = Hasher({other: _zeros for other in self.unknown if other != name}, self.known)
        for trial in list_trials(node, calls, hasher, COMMON_SCHEMES):
            picked = trial.pick(orders)
            for row in reversed(range(len(picked))):
                yield trial.express(picked, row)

    def _probe(
        self, target: str, others: Mapping[str, HashExpression | None]
    ) -> tuple[list[pa.Array], HashCodes, HashCodes | None]:
        """Find the objects of a class in the sampled keys, and how the hash of a key depends on their hash codes.

        Returns:
            (objects, offset i32[keys], scales i32[occurrences, keys]). The scales are None unless the hash of a key is
            `offset + Σ scale * code`.
        """
        calls: list[pa.Array] = []
        expressions = {**self.known, **{name: each for name, each in others.items() if each is not None}}

        def evaluate(codes: Mapping[int, HashCodes]) -> HashCodes:
            calls.clear()

            def compute(array: pa.StructArray) -> HashCodes:
                calls.append(array)
                return codes.get(len(calls) - 1, np.zeros(len(array), np.int32))

            hashes: dict[str, ClassHash] = {target: compute}
            hasher = Hasher(hashes, expressions)
            for name, each in others.items():
                if each is None:
                    hashes[name] = partial(_visit, self.unknown[name], hasher)
            return hasher.hash(self.serializer, self.few)

        rows = len(self.few)
        offset = evaluate({})
        objects = list(calls)
        if any(len(each) != rows for each in objects):
            return objects, offset, None
        ones = np.ones(rows, np.int32)
        scales = [evaluate({index: ones}) - offset for index in range(len(objects))]
        random = np.random.default_rng(1)
        codes = [random.integers(-(1 << 31), 1 << 31, rows, np.int32) for _ in objects]
        expected = offset.copy()
        for scale, code in zip(scales, codes, strict=True):
            expected = expected + scale * code
        linear = np.array_equal(expected, evaluate(dict(enumerate(codes))))
        return objects, offset, np.stack(scales) if linear and scales else None

    def _try_class(
        self,
        target: str,
        others: dict[str, HashExpression],
        misses: int,
        schemes: Sequence[HashScheme],
        most_orders: int = MOST_ORDERS,
    ) -> Iterator[_Fit]:
        node = self.unknown[target]
        if isinstance(node, tree.Avro):
            yield from self._try_slowly(target, others, misses, map(parse_hash_expression, PHYSICAL_TYPES))
            if node.runtime_class == GENERIC:
                return
        names = field_nodes(node)
        if not names:
            return
        objects, offset, scales = self._probe(target, others)
        if not objects:
            # The chosen hashes of the enclosing classes do not use this class at all: test them as they are.
            self.candidates += 1
            missed = int((assign_key_groups(offset, self.max_parallelism) != self.few_groups).sum())
            if missed <= misses:
                yield _Fit(others, missed)
            return
        orders = list_orders(len(names), most_orders)
        self.complete &= orders.complete or most_orders < MOST_ORDERS
        hasher = Hasher(expressions={**self.known, **others})
        if scales is None:
            # The hash of a key is not a linear function of the `hashCode` of this class, so each candidate has to hash
            # all sampled keys again. That is slow: only common schemes are tried.
            self.complete = False
            orders = list_orders(len(names), 400)
            schemes = COMMON_SCHEMES
        for trial in list_trials(node, objects, hasher, schemes):
            picked = trial.pick(orders)
            if scales is None:
                yield from self._try_together(target, others, misses, trial, picked)
                continue
            self.candidates += len(picked)
            if self.hopeless:
                continue
            groups, most = self.few_groups, self.max_parallelism
            for row, missed in screen(trial, picked, offset, scales, groups, most, target, misses=misses):
                yield _Fit({**others, target: trial.express(picked, row)}, missed)

    def _try_together(
        self, target: str, others: dict[str, HashExpression], misses: int, trial: Trial, orders: Orders
    ) -> Iterator[_Fit]:
        """Try the orders of one trial where key hashes are not linear in the codes: hash every key once per order."""
        self.candidates += len(orders)
        rows = len(self.few)
        if self.hopeless or not len(orders):
            return
        if trial.codes.shape[2] != rows:
            # Keys do not have exactly one object each, because they have lists of them: try one order after the other.
            self.candidates -= len(orders)
            texts = (trial.express(orders, row) for row in range(len(orders)))
            yield from self._try_slowly(target, others, misses, texts)
            return
        codes = iter(join(trial, orders, target).reshape(len(trial.codes), -1))
        hasher = Hasher({target: lambda _: next(codes)}, {**self.known, **others})
        keys = self.few.take(pa.array(np.tile(np.arange(rows), len(orders))))
        groups = assign_key_groups(hasher.hash(self.serializer, keys), self.max_parallelism).reshape(-1, rows)
        missed = (groups != self.few_groups).sum(axis=1)
        for row in np.flatnonzero(missed <= misses).tolist():
            yield _Fit({**others, target: trial.express(orders, row)}, int(missed[row]))

    def _try_slowly(
        self, target: str, others: dict[str, HashExpression], misses: int, candidates: Iterable[HashExpression]
    ) -> Iterator[_Fit]:
        for expression in candidates:
            self.candidates += 1
            expressions = {**others, target: expression}
            try:
                groups = assign_key_groups(self._codes(expressions, self.few), self.max_parallelism)
            except UsageError:
                # The expression uses a field whose hash is not the same in every JVM, so it cannot be the right one.
                continue
            missed = int((groups != self.few_groups).sum())
            if missed <= misses:
                yield _Fit(expressions, missed)


def _visit(node: tree.Serializer, hasher: Hasher, array: pa.StructArray) -> HashCodes:
    """Return 0 for each object of an unknown class, after hashing its fields so that classes inside are visited."""
    for name in field_nodes(node):
        try:
            hasher.field_codes(node, array, name, How.HASH)
        except (UsageError, UnsupportedError):
            # A field without a known hash, or one that differs between JVMs, cannot contribute.
            continue
    return _zeros(array)


def _zeros(array: pa.StructArray) -> HashCodes:
    return np.zeros(len(array), np.int32)


def _direct(node: tree.Serializer, expressions: dict[str, HashExpression]) -> ClassHash:
    return lambda array: Hasher(expressions=expressions).hash(node, array)


def _recording(compute: ClassHash, seen: list[HashCodes]) -> ClassHash:
    def record(array: pa.StructArray) -> HashCodes:
        codes = compute(array)
        seen.append(codes[np.asarray(array.is_valid())])
        return codes

    return record


def _tell(expressions: Mapping[str, HashExpression]) -> str:
    texts = [f"{name.rpartition('.')[2]}: {each}" for name, each in expressions.items()]
    return ", ".join(texts) if len(texts) > 1 else str(*expressions.values())
