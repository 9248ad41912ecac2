from __future__ import annotations

import sys

import pytest
import yaml

from state_pipelines.storage.documents import (
    MAX_DEPTH,
    MOST_BYTES,
    MOST_REPEATED,
    RepeatedKeyError,
    find_entry_lines,
    find_equal_names,
    parse_yaml,
)


def test_values_and_texts() -> None:
    assert parse_yaml("a: [1, no]") == {"a": [1, False]}
    assert parse_yaml("a: [1, no]", as_texts=True) == {"a": ["1", "no"]}


@pytest.mark.slow
@pytest.mark.parametrize("as_texts", [False, True])
def test_depth_is_bounded(as_texts: bool) -> None:
    assert parse_yaml("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1), as_texts=as_texts)
    with pytest.raises(yaml.YAMLError, match=f"nest deeper than {MAX_DEPTH}"):
        parse_yaml("[" * 20_000, as_texts=as_texts)


@pytest.mark.parametrize("text", ["revision: 2020-13-45", "time: 2020-01-01 25:00:00"])
def test_what_does_not_exist_is_an_error_of_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["!!bool x", "!!int ''", "!!timestamp x", "a: !!int {}", "!!float []"])
def test_what_is_not_of_its_tag_is_an_error_of_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["&a {x: *a}", "&a [*a]", "x: &a [{y: [*a]}]", "&a {*a : 1}"])
@pytest.mark.parametrize("as_texts", [False, True])
def test_an_alias_inside_of_what_it_names_is_refused(text: str, as_texts: bool) -> None:
    with pytest.raises(yaml.YAMLError, match=r"the alias \*a refers to a value that contains it"):
        parse_yaml(text, as_texts=as_texts)


def test_an_alias_is_as_deep_as_what_it_names() -> None:
    half = MAX_DEPTH // 2
    deep = f"- &a {'[' * half}{']' * half}\n- {'[' * (half - 2)}*a{']' * (half - 2)}\n"
    assert len(parse_yaml(deep)) == 2
    with pytest.raises(yaml.YAMLError, match=f"nest deeper than {MAX_DEPTH}"):
        parse_yaml(deep + f"- {'[' * half}*a{']' * half}\n")


@pytest.mark.parametrize("text", ["[*a{0}, *a{0}, *a{0}]", "{{<<: [*a{0}, *a{0}, *a{0}], x{0}: 1}}"])
@pytest.mark.parametrize("as_texts", [False, True])
def test_aliases_of_aliases_of_aliases_are_refused(text: str, as_texts: bool) -> None:
    lines = ["a0: &a0 {x: 1}", *(f"a{each + 1}: &a{each + 1} {text.format(each)}" for each in range(40))]
    with pytest.raises(yaml.YAMLError, match=f"aliases repeat more than {MOST_REPEATED:,} values"):
        parse_yaml("\n".join(lines), as_texts=as_texts)


def test_aliases_beside_each_other_are_values() -> None:
    assert parse_yaml("a: &x {y: 1}\nb: *x\nc: {<<: *x, z: 2}") == {"a": {"y": 1}, "b": {"y": 1}, "c": {"y": 1, "z": 2}}


@pytest.mark.parametrize("text", [r'"\ud800"', r'"a\0b"', r'{a: ["\udfff"]}', r'{"\0": 1}'])
@pytest.mark.parametrize("as_texts", [False, True])
def test_texts_that_no_file_can_have_as_a_name_are_refused(text: str, as_texts: bool) -> None:
    with pytest.raises(yaml.YAMLError, match="contains a NUL or surrogate character"):
        parse_yaml(text, as_texts=as_texts)


def test_two_halves_of_a_character_are_one_as_in_json() -> None:
    assert parse_yaml(r'["\ud83d\ude80"]') == ["\N{ROCKET}"]


def test_a_document_that_is_too_long_is_refused() -> None:
    with pytest.raises(yaml.YAMLError, match=r"the document has 8,388,609 bytes, more than 8,388,608"):
        parse_yaml(" " * (MOST_BYTES + 1))


def test_digits_are_bounded() -> None:
    assert parse_yaml("0x" + "f" * 900) == 16**900 - 1
    with pytest.raises(yaml.YAMLError, match="1,002 digits"):
        parse_yaml("0x" + "f" * 1000)


@pytest.mark.parametrize(
    "text", ["a: 1\nb: 2\na: 3", "{a: 1, a: 1}", '{"a": 1, a: 2}', "x: [{y: {a: 1, a: 2}}]", "&x a: 1\na: 2"]
)
@pytest.mark.parametrize("as_texts", [False, True])
def test_a_key_that_is_there_twice_is_refused(text: str, as_texts: bool) -> None:
    with pytest.raises(RepeatedKeyError, match="the key 'a' is there twice, in lines 1 and"):
        parse_yaml(text, as_texts=as_texts)


@pytest.mark.parametrize("text", ["{1: a, 0x1: b}", "{1: a, 1.0: b}", "{no: a, off: b}", "{~: a, null: b}"])
def test_keys_are_compared_by_their_values(text: str) -> None:
    with pytest.raises(RepeatedKeyError):
        parse_yaml(text)
    assert len(parse_yaml(text, as_texts=True)) == 2


def test_a_value_that_replaces_a_merged_one_is_no_repetition() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: [*b, *a], y: 3}\nd: {<<: *b}"
    assert parse_yaml(text)["c"] == {"x": 2, "y": 3}
    with pytest.raises(RepeatedKeyError):
        parse_yaml("a: &a {x: 1}\nb: &b {x: 1}\nc: {<<: *a, <<: *b}")


def test_repeated_keys_of_other_programs() -> None:
    assert parse_yaml("a: 1\na: 2", allow_repeated_keys=True) == {"a": 2}


@pytest.mark.parametrize("key", [sys.hash_info.modulus, -sys.hash_info.modulus, 7 * sys.hash_info.modulus])
def test_keys_that_are_numbers_have_hashes_of_their_own(key: int) -> None:
    assert parse_yaml(f"{{{sys.hash_info.modulus - 1}: 1, {1 - sys.hash_info.modulus}: 1}}")
    with pytest.raises(yaml.YAMLError, match="a key is a number of more than 18 digits"):
        parse_yaml(f"{{{key}: 1}}")
    with pytest.raises(yaml.YAMLError, match="a key is a number of more than 18 digits"):
        parse_yaml(f"{{{key}: 1}}", allow_repeated_keys=True)


def test_lines_of_entries() -> None:
    text = "# pins\npins:\n- a\n\n- path: b\n  reason: c\n- {path: d}\nothers: [x]\n"
    assert find_entry_lines(text, "pins") == [3, 5, 7]
    assert find_entry_lines(text.encode(), "others") == [8]
    assert find_entry_lines("pins: {}", "pins") == find_entry_lines("[1]", "pins") == find_entry_lines("", "pins") == []


def test_names_that_are_equal() -> None:
    assert find_equal_names(["a-b", "c", "a_b"], lambda name: name.replace("_", "-")) == ("a-b", "a_b")
    assert find_equal_names(["a-b", "c"], lambda name: name) is None
