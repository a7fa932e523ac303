"""Plain values survive exactly, and only plain values are taken."""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import json
import math
import pathlib
import struct
import types
import uuid
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import slackwater as sw
import torch
from hypothesis import given
from slackwater.state import codec, decoder


class Colour(enum.Enum):
    RED = 1


class Rank(enum.IntEnum):
    FIRST = 1


Point = collections.namedtuple("Point", "x y")


def no_tensor(name: str, is_array: bool) -> Any:
    raise AssertionError(name)


def round_trip(value: Any, **options: bool) -> Any:
    node = codec.Encoder(**options).encode(value, "v")
    return decoder.decode(decoder.load_tree(codec.dump_tree(node).decode()), no_tensor, **options)


def identical(a: Any, b: Any) -> bool:
    """Same type, same value, and for floats the same bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return identical(a.real, b.real) and identical(a.imag, b.imag)
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(identical, a, b)) and all(map(identical, a.values(), b.values()))
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000abcdef"))[0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**53,
        2**53 + 1,
        -(2**64),
        10**5000,
        0.0,
        -0.0,
        0.1,
        5e-324,
        1e308,
        math.inf,
        -math.inf,
        math.nan,
        NAN_WITH_PAYLOAD,
        "",
        "text",
        "\0",
        "\ud800 alone",
        "ü😀",
        b"",
        b"\0\xff",
        bytearray(b"ab"),
        complex(-0.0, math.nan),
        [],
        [1, [2, [3]]],
        (),
        (1,),
        (1, (2, "x")),
        {},
        {"a": 1},
        {1: "int", "1": "str"},
        {(1, "a"): 2, None: 3, True: 4, 1.5: 5},
        {"$": "not a tag"},
        {"$t": "not a tensor"},
        {"\udfff": 1},
        {b"k": frozenset({1, 2})},
        {1, 2, "x"},
        set(),
        frozenset({(1, 2)}),
        collections.OrderedDict([("b", 1), ("a", 2)]),
        collections.Counter("abca"),
        collections.defaultdict(list, {"a": [1]}),
        collections.deque([1, 2], maxlen=3),
        range(1, 10, 2),
        slice(1, None, 2),
        Ellipsis,
        argparse.Namespace(lr=0.1, nested=argparse.Namespace(a=(1,))),
        types.SimpleNamespace(a=1),
        pathlib.PurePosixPath("/a/b"),
        pathlib.Path("x/y"),
        datetime.date(2024, 2, 29),
        datetime.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC),
        datetime.datetime(2024, 1, 2, fold=1),
        datetime.time(1, 2, 3),
        datetime.timedelta(days=-1, microseconds=1),
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=5),
        Colour.RED,
        Rank.FIRST,
        Point(1, (2, 3)),
        np.float32(1.5),
        np.float64(0.1),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.complex64(1 + 2j),
        np.str_("ü"),
        np.bytes_(b"x"),
        np.datetime64("2024-01-02"),
        np.dtype("float16"),
        np.dtype("<U3"),
        torch.Size([2, 3]),
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.device("cuda:3"),
        torch.device("cpu"),
        torch.strided,
        torch.channels_last,
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_survives_exactly(value: Any) -> None:
    assert identical(round_trip(value), value)


def test_order_of_a_dict_is_kept() -> None:
    assert list(round_trip({"b": 1, "a": 2, 3: 4})) == ["b", "a", 3]


def test_factory_of_a_defaultdict_is_kept() -> None:
    assert round_trip(collections.defaultdict(int))["absent"] == 0


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(
            st.text() | st.integers() | st.booleans() | st.binary() | st.tuples(st.integers(), st.text()), inner
        )
        | st.dictionaries(st.text(), inner).map(collections.OrderedDict)
    ),
    max_leaves=20,
)


@given(plain)
def test_any_tree_of_plain_values_survives_exactly(value: Any) -> None:
    assert identical(round_trip(value), value)


@given(plain)
def test_tree_is_json_that_other_readers_take(value: Any) -> None:
    json.loads(codec.dump_tree(codec.Encoder().encode(value, "v")), parse_constant=lambda word: pytest.fail(word))


class Custom:
    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.number == self.number


@pytest.mark.parametrize(
    "value",
    [
        Custom(1),
        lambda: 1,
        {1: {2: Custom(1)}},
        [object()],
        type("Text", (str,), {})("x"),
        collections.defaultdict(Custom),
    ],
)
def test_unknown_type_is_refused_by_name(value: Any) -> None:
    with pytest.raises(sw.UnsupportedError, match=r"'v|defaultdict") as caught:
        codec.Encoder().encode(value, "v")
    assert isinstance(caught.value, TypeError)


def test_refusal_names_path_type_and_remedy() -> None:
    with pytest.raises(sw.UnsupportedError, match=r"'v\.a\.1' is a test_codec\.Custom.*allow_pickle=True"):
        codec.Encoder().encode({"a": [0, Custom(1)]}, "v")


def test_cycle_is_refused() -> None:
    value: list[Any] = []
    value.append({"again": value})
    with pytest.raises(sw.UsageError, match="contains itself"):
        codec.Encoder().encode(value, "v")


def test_the_same_list_twice_is_no_cycle() -> None:
    shared = [1]
    assert round_trip([shared, shared]) == [[1], [1]]


def test_pickle_needs_consent_of_writer_and_reader() -> None:
    node = codec.Encoder(allow_pickle=True).encode(Custom(3), "v")
    assert decoder.decode(node, no_tensor, allow_pickle=True) == Custom(3)
    with pytest.raises(sw.UnsupportedError, match=r"pickled test_codec\.Custom.*allow_pickle=True"):
        decoder.decode(node, no_tensor)


def test_value_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(sw.UnsupportedError, match="'hologram'"):
        decoder.decode({"$": "hologram", "v": 1}, no_tensor)


def nested(depth: int) -> list[Any]:
    node: list[Any] = []
    for _ in range(depth):
        node = [node]
    return node


@pytest.mark.parametrize(
    "node",
    [
        {"$": "bytes"},
        {"$": "bytes", "v": 3},
        {"$": "int", "v": "zz"},
        {"$": "float", "v": "nan:zz"},
        {"$": "Decimal", "v": "one"},
        {"$": "Fraction", "v": [1, 0]},
        nested(100_000),
    ],
    ids=lambda node: str(node) if len(node) > 1 else "nested",
)
def test_malformed_node_is_damage(node: Any) -> None:
    with pytest.raises(sw.DamagedError):
        decoder.decode(node, no_tensor)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"slackwater_tree":1}'])
def test_malformed_tree_is_damage(text: str) -> None:
    with pytest.raises(sw.DamagedError):
        decoder.load_tree(text)


def test_tree_of_a_newer_format_is_refused() -> None:
    with pytest.raises(sw.UnsupportedError, match="format 2"):
        decoder.load_tree('{"slackwater_tree":2,"state":{}}')


@pytest.mark.parametrize(
    ("state", "values"),
    [
        ({"n": [1, {"x": '}"'}], "é\n": None, "t": (1,)}, {"n", "é\n", "t"}),
        ({}, set()),
        ({1: 2, "a": 3}, set()),  # no JSON object: it is compared as a whole
        ({"$": 1}, set()),
    ],
)
def test_values_at_the_top_are_given_beside_the_tree(state: dict[Any, Any], values: set[str]) -> None:
    node = codec.Encoder().encode(state, "")
    tree, texts = codec.dump_tree_and_values(node)
    assert tree == codec.dump_tree(node)
    assert set(texts) == values
    for key, text in texts.items():
        assert json.loads(text) == node[key]


def test_classes_are_never_imported_by_decoding() -> None:
    node = {"$": "enum", "class": "antigravity:Colour", "name": "RED"}
    with pytest.raises(sw.UnsupportedError, match="import its module first"):
        decoder.decode(node, no_tensor)
    import sys

    assert "antigravity" not in sys.modules


def test_fold_of_a_time_is_kept() -> None:
    """The hour that comes twice when clocks are put back: times that differ in nothing else are equal to Python."""
    for value in (datetime.datetime(2024, 10, 27, 2, 30, fold=1), datetime.time(2, 30, fold=1)):
        assert round_trip(value).fold == 1
        assert round_trip(value.replace(fold=0)).fold == 0


def test_the_same_container_in_several_places_is_no_cycle() -> None:
    shared = {"lr": 0.1, "deep": [{"x": 1}]}
    value = {"a": shared, "b": [shared, (shared,)], "c": {"d": shared}}
    assert round_trip(value) == value


def test_named_tuple_whose_fields_were_reordered_keeps_its_values_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    node = codec.Encoder().encode(Point(x=1, y=2), "v")
    for fields in ("y x", "x z", "x y z"):
        monkeypatch.setitem(globals(), "Point", collections.namedtuple("Point", fields))
        found = decoder.decode(node, no_tensor)
        assert (found.x, found.y) == (1, 2), fields
