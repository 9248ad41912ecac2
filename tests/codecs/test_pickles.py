"""Pickles by their literals; nothing is executed."""

from __future__ import annotations

import datetime
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.codecs.json import value_json
from state_pipelines.codecs.pickles import MAX_DEPTH, Pickled, is_pickle, pickle_json, read_pickle
from state_pipelines.errors import FormatError, StateError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
_KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(_KEYS, inner)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(_VALUES, st.sampled_from([4, 5]))
def test_literals_and_containers_are_read(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("value", [[1, 70_000, -1, 2**40], ("a", None, True), {"k": [1.5, {}]}, -(2**70)])
def test_older_protocols_are_read(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


def test_the_pickle_of_pyflink_is_read() -> None:
    raw = bytes.fromhex("8004951b000000000000007d94288c016b948c066b65792d3231948c0176944acd470f00752e")

    assert read_pickle(raw) == {"k": "key-21", "v": 1001421}


def test_an_object_of_a_class_is_refused_by_its_name() -> None:
    with pytest.raises(UnsupportedError, match=r"datetime\.date, and nothing of a pickle is executed"):
        read_pickle(pickle.dumps(datetime.date(2024, 1, 1)))


def test_a_call_is_refused_before_it_could_run() -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("executed",))

    for protocol in (2, 4, 5):
        with pytest.raises(UnsupportedError):
            read_pickle(pickle.dumps(Attack(), protocol))


def test_a_container_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(UnsupportedError, match="holds itself"):
        read_pickle(pickle.dumps(loop))


def test_deep_nesting_is_refused() -> None:
    nested: Any = []
    for _ in range(MAX_DEPTH):
        nested = [nested]

    with pytest.raises(UnsupportedError, match="levels deep"):
        read_pickle(pickle.dumps(nested))


def test_a_structure_that_doubles_with_each_level_is_refused() -> None:
    doubled: Any = [1]
    for _ in range(40):
        doubled = [doubled, doubled]

    with pytest.raises(UnsupportedError, match="unfolds to more than"):
        read_pickle(pickle.dumps(doubled))


@pytest.mark.parametrize("repeated", [b"x" * 100_000, "x" * 100_000, bytearray(100_000), (1,) * 20_000])
def test_repeated_data_count_by_their_size(repeated: Any) -> None:
    with pytest.raises(UnsupportedError, match="unfolds to more than"):
        read_pickle(pickle.dumps([repeated] * 20_000, 5))


def test_a_value_that_is_mentioned_often_is_read() -> None:
    value = [{"name": "a name of some length", "number": 5}] * 20_000

    assert read_pickle(pickle.dumps(value, 4)) == value


def long_integer(number: int) -> bytes:
    raw = number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes((len(raw),)) + raw


@pytest.mark.slow
@pytest.mark.parametrize(
    "fill",
    [
        pytest.param(lambda keys: b"}(" + b"".join(key + b"N" for key in keys) + b"u.", id="dict"),
        pytest.param(lambda keys: b"}" + b"".join(key + b"Ns" for key in keys) + b".", id="dict, one by one"),
        pytest.param(lambda keys: b"(" + b"".join(key + b"N" for key in keys) + b"d.", id="dict, at once"),
        pytest.param(lambda keys: b"\x8f(" + b"".join(keys) + b"\x90.", id="set"),
        pytest.param(lambda keys: b"(" + b"".join(keys) + b"\x91.", id="frozenset"),
        pytest.param(lambda keys: b"\x8f(" + b"".join(key + b"\x85" for key in keys) + b"\x90.", id="tuples"),
    ],
)
def test_keys_of_equal_hash_are_refused(fill: Callable[[list[bytes]], bytes]) -> None:
    keys = [long_integer(number * (2**61 - 1)) for number in range(1, 40_000)]

    with pytest.raises(UnsupportedError, match="keys with the same hash"):
        read_pickle(b"\x80\x04" + fill(keys))


def test_large_and_repeated_keys_are_read() -> None:
    value = [{2**61: 1, 2**70: 2, (1, "a"): 3, -1: 4, 1.5: 5, frozenset({(2, 3)}): 6} for _ in range(500)]

    assert read_pickle(pickle.dumps(value)) == value


def test_keys_that_are_nested_too_deep_are_refused() -> None:
    key = b"N" + b"\x85" * 5_000

    with pytest.raises(UnsupportedError, match="levels"):
        read_pickle(b"\x80\x04}(" + key + b"N" + key + b"Nu.")


def test_a_key_that_doubles_with_each_level_is_not_hashed() -> None:
    doubled: Any = (1,)
    for _ in range(40):
        doubled = (doubled, doubled)
    # The pickle of a dict with that key: hashing it would take far too long.
    body = pickle.dumps(doubled, 4)[:-1]

    with pytest.raises(UnsupportedError, match="key of more than"):
        read_pickle(b"\x80\x04}" + body[11:] + b"Ns.")


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_an_error(raw: bytes) -> None:
    try:
        pickle_json(read_pickle(b"\x80\x04" + raw))
    except StateError:
        return


@pytest.mark.slow
@given(_VALUES, st.data())
def test_damaged_pickles_give_a_value_or_an_error(value: Any, data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps(value, 4))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        pickle_json(read_pickle(bytes(raw)))
    except StateError:
        return


def test_left_over_bytes_are_an_error() -> None:
    with pytest.raises(FormatError):
        read_pickle(pickle.dumps(1) + b"x")


def test_json_keeps_tuples_sets_bytes_and_other_keys() -> None:
    value = {"a": (1, b"\x00"), "s": {2, 1}, "m": {1: None}, "n": float("nan"), "big": 2**64}

    assert pickle_json(value) == {
        "a": {"@tuple": [1, {"@bytes": "00"}]},
        "s": {"@set": [1, 2]},
        "m": {"@map": [[1, None]]},
        "n": "NaN",
        "big": {"@bigint": "18446744073709551616"},
    }


def test_what_cannot_be_shown_is_bytes_and_the_reason() -> None:
    raw = pickle.dumps(datetime.date(2024, 1, 1))
    shown = value_json(Pickled(raw))

    assert isinstance(shown, dict)
    assert shown["@undecoded"] == raw.hex()
    assert "datetime.date" in str(shown["@reason"])


@pytest.mark.parametrize(("raw", "expected"), [(pickle.dumps([1]), True), (b"\x80\x04", False), (b"text.", False)])
def test_pickles_are_detected_by_both_ends(raw: bytes, expected: bool) -> None:
    assert is_pickle(raw) is expected
