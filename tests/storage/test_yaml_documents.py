from __future__ import annotations

import pytest
import yaml

from state_pipelines.storage.yaml_documents import MAX_DEPTH, MOST_BYTES, MOST_REPEATED, parse_yaml


def test_values_and_texts() -> None:
    assert parse_yaml("a: [1, no]") == {"a": [1, False]}
    assert parse_yaml("a: [1, no]", as_texts=True) == {"a": ["1", "no"]}


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
    with pytest.raises(yaml.YAMLError, match=r"the alias \*a is inside of what it names"):
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
    with pytest.raises(yaml.YAMLError, match="a character that names and UTF-8 cannot have"):
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
