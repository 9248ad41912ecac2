from __future__ import annotations

from dataclasses import replace

from state_pipelines.serializers.build import basic, list_of
from state_pipelines.serializers.state_meta_info import join_infos, join_serializers, operator_list
from state_pipelines.serializers.tree import Pojo, PojoField, PojoSubclass

LONG, TEXT = basic("Long"), basic("String")


def pojo(*subclasses: PojoSubclass, name: str = "a.Base") -> Pojo:
    field = PojoField(name="id", declaring_class="a.Base", serializer=LONG)
    return Pojo(pojo_class=name, fields=(field,), non_registered=subclasses)


def subclass(name: str, *inner: PojoSubclass) -> PojoSubclass:
    return PojoSubclass(class_name=name, serializer=pojo(*inner, name=name))


ONE, OTHER = subclass("a.One"), subclass("a.Other")


def test_subclasses_of_both_are_listed_those_of_the_first_one_first() -> None:
    assert join_serializers(pojo(OTHER), pojo(ONE, OTHER)) == pojo(OTHER, ONE)
    assert join_serializers(pojo(), pojo(ONE)) == pojo(ONE)


def test_they_are_joined_inside_other_serializers() -> None:
    deep = pojo(subclass("a.One", OTHER))
    assert join_serializers(list_of(pojo(ONE)), list_of(deep)) == list_of(deep)


def test_registered_subclasses_have_numbers_and_are_not_joined() -> None:
    assert join_serializers(replace(pojo(), registered=(ONE,)), replace(pojo(), registered=(OTHER,))) is None


def test_other_differences_are_not_joined() -> None:
    assert join_serializers(LONG, TEXT) is None
    assert join_serializers(list_of(LONG), list_of(TEXT)) is None
    assert join_serializers(pojo(), pojo(name="a.Base2")) is None
    field = PojoField(name="id", declaring_class="a.Base", serializer=TEXT)
    assert join_serializers(pojo(), replace(pojo(), fields=(field,))) is None


def test_states_are_joined_when_their_serializers_are() -> None:
    first, second = operator_list("x", pojo(ONE)), operator_list("x", pojo(OTHER))
    assert join_infos(first, second) == operator_list("x", pojo(ONE, OTHER))
    assert join_infos(first, operator_list("x", LONG)) is None
    assert join_infos(first, replace(second, options=())) is None
