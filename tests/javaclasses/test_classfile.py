"""Class files: three small ones as javac wrote them, and damaged ones."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from state_pipelines.codecs.kryo.classes import ARRAY, JavaType
from state_pipelines.errors import FormatError, MissingFileError, UsageError
from state_pipelines.javaclasses import open_class_path, parse_class

if TYPE_CHECKING:
    from pathlib import Path

# public class A<T> { public long n; protected java.util.List<? extends T> l; }
GENERIC = bytes.fromhex(
    "cafebabe0000003d00110a000200030700040c000500060100106a6176612f6c616e672f4f626a6563740100063c696e69743e0100032829"
    "56070008010001410100016e0100014a0100016c0100104c6a6176612f7574696c2f4c6973743b0100095369676e61747572650100164c6a"
    "6176612f7574696c2f4c6973743c2b54543b3e3b010004436f64650100283c543a4c6a6176612f6c616e672f4f626a6563743b3e4c6a6176"
    "612f6c616e672f4f626a6563743b0021000700020000000200010009000a00000004000b000c0001000d00000002000e0001000100050006"
    "0001000f0000001100010001000000052ab70001b1000000000001000d000000020010"
)
# enum E { X, Y }
ENUM = bytes.fromhex(
    "cafebabe0000003d002b0700020100014509000100040c00050006010001580100034c453b09000100080c0009000601000159090001000b"
    "0c000c000d0100072456414c5545530100045b4c453b0a000f001007000d0c00110012010005636c6f6e6501001428294c6a6176612f6c61"
    "6e672f4f626a6563743b0a001400150700160c0017001801000e6a6176612f6c616e672f456e756d01000776616c75654f66010035284c6a"
    "6176612f6c616e672f436c6173733b4c6a6176612f6c616e672f537472696e673b294c6a6176612f6c616e672f456e756d3b0a0014001a0c"
    "001b001c0100063c696e69743e010016284c6a6176612f6c616e672f537472696e673b4929560800050a0001001a0800090a000100210c00"
    "2200230100072476616c75657301000628295b4c453b01000676616c756573010004436f6465010017284c6a6176612f6c616e672f537472"
    "696e673b294c453b0100095369676e61747572650100032829560100083c636c696e69743e0100154c6a6176612f6c616e672f456e756d3c"
    "4c453b3e3b4030000100140000000340190005000600004019000900060000101a000c000d00000005000900240023000100250000001600"
    "0100000000000ab2000ab6000ec0000fb0000000000009001700260001002500000016000200010000000a12012ab80013c00001b0000000"
    "000002001b001c000200250000001300030003000000072a2b1cb70019b1000000000027000000020028100a00220023000100250000001d"
    "000400000000001105bd00015903b20003535904b2000753b000000000000800290028000100250000002d0004000000000021bb00015912"
    "1d03b7001eb30003bb000159121f04b7001eb30007b80020b3000ab1000000000001002700000002002a"
)
# public record R(int a, String[] b) {}
RECORD = bytes.fromhex(
    "cafebabe0000003d00370a000200030700040c000500060100106a6176612f6c616e672f5265636f72640100063c696e69743e0100032829"
    "56090008000907000a0c000b000c010001520100016101000149090008000e0c000f0010010001620100135b4c6a6176612f6c616e672f53"
    "7472696e673b12000000120c00130014010008746f537472696e67010017284c523b294c6a6176612f6c616e672f537472696e673b120000"
    "00160c0017001801000868617368436f6465010006284c523b2949120000001a0c001b001c010006657175616c73010018284c523b4c6a61"
    "76612f6c616e672f4f626a6563743b295a01001728495b4c6a6176612f6c616e672f537472696e673b2956010004436f64650100104d6574"
    "686f64506172616d657465727301001428294c6a6176612f6c616e672f537472696e673b010003282949010015284c6a6176612f6c616e67"
    "2f4f626a6563743b295a01001528295b4c6a6176612f6c616e672f537472696e673b0100065265636f7264010010426f6f7473747261704d"
    "6574686f64730f0600270a0028002907002a0c002b002c01001f6a6176612f6c616e672f72756e74696d652f4f626a6563744d6574686f64"
    "73010009626f6f7473747261700100b1284c6a6176612f6c616e672f696e766f6b652f4d6574686f6448616e646c6573244c6f6f6b75703b"
    "4c6a6176612f6c616e672f537472696e673b4c6a6176612f6c616e672f696e766f6b652f5479706544657363726970746f723b4c6a617661"
    "2f6c616e672f436c6173733b4c6a6176612f6c616e672f537472696e673b5b4c6a6176612f6c616e672f696e766f6b652f4d6574686f6448"
    "616e646c653b294c6a6176612f6c616e672f4f626a6563743b08002e010003613b620f0100070f01000d01000c496e6e6572436c61737365"
    "730700330100256a6176612f6c616e672f696e766f6b652f4d6574686f6448616e646c6573244c6f6f6b757007003501001e6a6176612f6c"
    "616e672f696e766f6b652f4d6574686f6448616e646c65730100064c6f6f6b7570003100080002000000020012000b000c00000012000f00"
    "100000000600010005001d0002001e0000001b000200030000000f2ab700012a1bb500072a2cb5000db100000000001f0000000902000b00"
    "00000f00000011001300200001001e0000001300010001000000072aba00110000b0000000000011001700210001001e0000001300010001"
    "000000072aba00150000ac000000000011001b00220001001e0000001400020002000000082a2bba00190000ac000000000001000b002100"
    "01001e0000001100010001000000052ab40007ac000000000001000f00230001001e0000001100010001000000052ab4000db00000000000"
    "0300240000000e0002000b000c0000000f0010000000250000000e0001002600040008002d002f003000310000000a000100320034003600"
    "19"
)


def test_type_parameters_and_their_use() -> None:
    found = parse_class(GENERIC)
    assert (found.name, found.parameters, found.is_public, found.is_final) == ("A", ("T",), True, False)
    bounded = JavaType("java.util.List", (JavaType("T", wildcard=True),))
    assert [(each.name, each.type, each.raw, each.is_public) for each in found.fields] == [
        ("n", JavaType("long"), "long", True),
        ("l", bounded, "java.util.List", False),
    ]
    assert [(each.name, each.parameters) for each in found.methods] == [("<init>", ())]


def test_constants_of_an_enum() -> None:
    found = parse_class(ENUM)
    assert found.is_enum
    assert not found.is_public
    assert found.constants == ("X", "Y")


def test_components_of_a_record() -> None:
    found = parse_class(RECORD)
    assert found.is_record
    assert {each.name: each.type for each in found.fields} == {
        "a": JavaType("int"),
        "b": JavaType(ARRAY, (JavaType("java.lang.String"),)),
    }
    assert ("<init>", ("int", "java.lang.String[]")) in [(each.name, each.parameters) for each in found.methods]


@pytest.mark.parametrize("size", [0, 4, 9, 40, 200, len(GENERIC) - 1])
def test_a_class_file_that_ends_early(size: int) -> None:
    with pytest.raises(FormatError):
        parse_class(GENERIC[:size], "A.class")


def test_bytes_behind_the_class() -> None:
    with pytest.raises(FormatError):
        parse_class(GENERIC + b"\0")


@pytest.mark.parametrize("value", [0x00, 0x3B, 0xFF])
@pytest.mark.parametrize("whole", [GENERIC, ENUM])
def test_a_damaged_byte_is_an_error_or_another_class(whole: bytes, value: int) -> None:
    refused = 0
    for position in range(len(whole)):
        try:
            parse_class(whole[:position] + bytes([value]) + whole[position + 1 :])
        except FormatError:
            refused += 1
    assert refused > 20


def test_classes_are_found_in_directories_jars_and_files(tmp_path: Path) -> None:
    root = tmp_path
    (root / "A.class").write_bytes(GENERIC)
    with zipfile.ZipFile(root / "e.jar", "w") as jar:
        jar.writestr("E.class", ENUM)
    (root / "other").mkdir()
    (root / "other" / "renamed.class").write_bytes(RECORD)
    classes = open_class_path([root, root / "e.jar", root / "other" / "renamed.class"])
    assert [found.name for name in "AER" if (found := classes.find(name))] == ["A", "E", "R"]
    assert classes.find("com.acme.Order") is None


def test_a_file_without_classes(tmp_path: Path) -> None:
    path = tmp_path / "lib.jar"
    path.write_bytes(b"PK\x03\x04 but no jar")
    with pytest.raises(UsageError, match="the jar is damaged"):
        open_class_path([path])


def test_classes_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="does not exist"):
        open_class_path([tmp_path / "lib.jar"])
