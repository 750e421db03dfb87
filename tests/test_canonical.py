from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from syncd.canonical import MAX_DEPTH, canonical, parse
from syncd.errors import InvalidInputError

# RFC 8785, 3.2.2 (input) and 3.2.4 (bytes).
SAMPLE = r"""{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"""
SAMPLE_BYTES = """
7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72 75 65 2c 66 61 6c 73 65 5d 2c 22 6e
75 6d 62 65 72 73 22 3a 5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31 65 2b 33 30
2c 34 2e 35 2c 30 2e 30 30 32 2c 31 65 2d 32 37 5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24
5c 75 30 30 30 66 5c 6e 41 27 42 5c 22 5c 5c 5c 5c 5c 22 2f 22 7d
"""

# The files that the RFC's author publishes beside it: name, input, output.
PUBLISHED = [
    (
        "arrays",
        '[\n  56,\n  {\n    "d": true,\n    "10": null,\n    "1": [ ]\n  }\n]',
        '[56,{"1":[],"10":null,"d":true}]',
    ),
    (
        "french",
        """{
  "peach": "This sorting order",
  "péché": "is wrong according to French",
  "pêche": "but canonicalization MUST",
  "sin":   "ignore locale"
}""",
        '{"peach":"This sorting order","péché":"is wrong according to French",'
        '"pêche":"but canonicalization MUST","sin":"ignore locale"}',
    ),
    (
        "structures",
        r"""{
  "1": {"f": {"f": "hi","F": 5} ,"\n": 56.0},
  "10": { },
  "": "empty",
  "a": { },
  "111": [ {"e": "yes","E": "no" } ],
  "A": { }
}""",
        r'{"":"empty","1":{"\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],'
        r'"A":{},"a":{}}',
    ),
    (
        "unicode",
        r'{"Unnormalized Unicode":"A\u030a"}',
        '{"Unnormalized Unicode":"A\u030a"}',
    ),
    (
        "values",
        SAMPLE,
        r"""{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"""
        r""""string":"€$\u000f\nA'B\"\\\\\"/"}""",
    ),
    (
        "weird",
        r"""{
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\u000a": "Newline",
  "1": "One",
  "\u0080": "Control\u007f",
  "\ud83d\ude02": "Smiley",
  "\u00f6": "Latin Small Letter O With Diaeresis",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "</script>": "Browser Challenge"
}""",
        r'{"\n":"Newline","\r":"Carriage Return","1":"One","</script>":"Browser Challenge",'
        '"\u0080":"Control\u007f","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign",'
        '"\U0001f602":"Smiley","\ufb33":"Hebrew Letter Dalet With Dagesh"}',
    ),
]

# RFC 8785, appendix B.
NUMBERS = """
0000000000000000 0
8000000000000000 0
0000000000000001 5e-324
8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308
ffefffffffffffff -1.7976931348623157e+308
4340000000000000 9007199254740992
c340000000000000 -9007199254740992
4430000000000000 295147905179352830000
44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23
44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef4e 999999999999999700000
444b1ae4d6e2ef4f 999999999999999900000
444b1ae4d6e2ef50 1e+21
3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001
41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325
41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334
41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333
43143ff3c1cb0959 1424953923781206.2
"""


def test_the_rfcs_sample_gives_the_rfcs_bytes() -> None:
    assert canonical(parse(SAMPLE)) == bytes.fromhex(SAMPLE_BYTES)


@pytest.mark.parametrize(
    ("given_text", "expected"), [row[1:] for row in PUBLISHED], ids=[row[0] for row in PUBLISHED]
)
def test_the_published_documents_give_the_published_bytes(given_text: str, expected: str) -> None:
    assert canonical(parse(given_text)) == expected.encode()


def test_keys_sort_by_utf_16_units() -> None:
    """The RFC's 3.2.3: the emoji's first unit is below the Hebrew letter, its code point above."""
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = list(json.loads(canonical(dict.fromkeys(keys))))
    assert ordered == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("line", NUMBERS.split("\n")[1:-1])
def test_numbers_print_as_in_appendix_b(line: str) -> None:
    bits, expected = line.split()
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == expected.encode()
    assert canonical({"a": [number]}) == b'{"a":[' + expected.encode() + b"]}"


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_appendix_bs_nan_and_infinities_are_refused_at_any_depth(bits: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    for document in (number, [number], {"a": {"b": [1.5, number]}}, (None, number)):
        with pytest.raises(InvalidInputError, match="not a JSON number"):
            canonical(document)


EXOTIC = '\x00\x1f\x7f\x80"\\/e.\u2028\ud7ff\ue000\ufb33\uffff\U00010000\U0001f600\U0010ffff'
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(EXOTIC, max_size=4)
WHOLE = st.integers(-(2**53) + 1, 2**53 - 1)
NUMBER = st.one_of(
    WHOLE,
    WHOLE.map(float),
    st.floats(allow_nan=False, allow_infinity=False),
    # Where the fast path's idea of a plain float ends, from both sides.
    st.sampled_from([1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e15, 1e16, 1e17, 1e20, 1e21, 2.0**53]).flatmap(
        lambda edge: st.floats(edge * 0.999, edge * 1.001)
    ),
)
# Texts that look like the end of a number, or like nothing at all.
DECOYS = st.sampled_from(["1.5", ".5,", "e10]", "null", "1e-7}", "-0.0"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXTS | DECOYS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS | DECOYS, inner),
    max_leaves=20,
)


@given(VALUES)
@example({"\ue000": 1, "\U00010000": 2})
@example({"\uffff": 1, "\U00050000": 2})
@example({"\uf000": 1, "\U0010ffff": 2})
@example({"a": "\uffff", "\U00010000": 1.5})
@example([-0.0, 1e15 + 0.5, 1e-3, 9.999e-4, 2.0**53])
@example(1e16)
@example([1.5e16, -1e20])
@example({"a": None, "b": "e10"})
def test_equals_the_complete_implementation(document: Any) -> None:
    assert canonical(document) == rfc8785.dumps(document)


@given(VALUES)
@example(1e17)
@example([None, 2.0**53])
def test_reading_back_and_writing_again_changes_nothing(document: Any) -> None:
    once = canonical(document)
    assert canonical(parse(once)) == once


def nested(levels: int, *innermost: Any) -> Any:
    value: Any = list(innermost)
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (float("nan"), "nan is not a JSON number"),
        ([float("inf")], "inf is not a JSON number"),
        ({"a": -float("inf")}, "-inf is not a JSON number"),
        ("\ud800", "surrogate"),
        (["a", "\udfff"], "surrogate"),
        ({"\udc00": 1}, "surrogate"),
        (2**53 + 1, "give it as a string"),
        ([-(2**53) - 1], "give it as a string"),
        (2**64 + 1, "give it as a string"),
        (-(2**70) - 1, "give it as a string"),
        (10**400, "give it as a string"),
        ({1: "a"}, "cannot be written as JSON"),
        ({None: "a"}, "cannot be written as JSON"),
        ({"a": {(1, 2): 0.5}}, "cannot be written as JSON"),
        ({"a": b"bytes"}, "cannot be written as JSON"),
        ({"a": {"a set"}}, "cannot be written as JSON"),
        (object(), "cannot be written as JSON"),
        (nested(1_000), "nested deeper"),
        (nested(100_000), "nested deeper"),
        (nested(300, 0.5), "nested deeper"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_json_cannot_hold_is_refused_with_the_reason(document: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        canonical(document)


def test_the_largest_exact_integers_are_kept() -> None:
    assert canonical([2**53 - 1, -(2**53) + 1]) == b"[9007199254740991,-9007199254740991]"


@pytest.mark.parametrize("number", [0.5, 1e-9])
def test_a_float_at_the_end_of_endless_nesting_is_refused_too(number: float) -> None:
    with pytest.raises(InvalidInputError, match="nested deeper"):
        canonical(nested(2_000, number))


LOOP = """
from syncd.canonical import canonical
from syncd.errors import InvalidInputError
loop = []
loop += ITEMS
try:
    canonical(loop)
except InvalidInputError as error:
    print(error)
"""


@pytest.mark.parametrize("items", ["[{'a': loop}, 1]", "[0.5, loop]"])
def test_a_value_that_contains_itself_is_refused(items: str) -> None:
    """In a process of its own: what does not notice the loop does not come back."""
    done = subprocess.run(
        [sys.executable, "-c", LOOP.replace("ITEMS", items)],
        capture_output=True,
        text=True,
        timeout=2,
    )
    assert (done.stdout, done.stderr) == (
        f"cannot be written as JSON: nested deeper than {MAX_DEPTH} levels\n",
        "",
    )


def test_tuples_are_arrays_with_and_without_floats() -> None:
    assert canonical((1, (2,))) == b"[1,[2]]"
    assert canonical((1.5, (2e-9,))) == b"[1.5,[2e-9]]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "in.json: the key 'a' stands twice in one object"),
        ('{"b": [{"a": 1, "c": 0, "a": 1}]}', "in.json: the key 'a' stands twice in one object"),
        ('{"a": NaN}', "in.json: NaN is not a JSON number"),
        ("[Infinity]", "in.json: Infinity is not a JSON number"),
        ("-Infinity", "in.json: -Infinity is not a JSON number"),
        ('{"a":\n  1,}', "in.json: not valid JSON at line 2, column 5: "),
        ("", "in.json: not valid JSON at line 1, column 1: "),
        ("{} {}", "in.json: not valid JSON at line 1, column 4: "),
        ("\ufeff{}", "in.json: not valid JSON at line 1, column 1: "),
        (b'{"a": "\xff"}', "in.json: not UTF-8 at byte 7"),
        (b'"\xed\xa0\x80"', "in.json: not UTF-8 at byte 1"),
        ("[" * 100_000, "in.json: nested deeper"),
        ('{"a":' * 100_000, "in.json: nested deeper"),
        ("9" * 5_000, "in.json: "),
    ],
)
def test_a_flawed_document_is_refused_with_its_place(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse(text, "in.json")
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message


def test_a_byte_order_mark_before_a_files_bytes_is_ignored() -> None:
    assert parse(b'\xef\xbb\xbf{"a": "\xc3\xa9"}') == {"a": "é"}


def test_equal_keys_in_different_objects_are_no_duplicates() -> None:
    assert parse('{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}') == {
        "a": {"a": 1},
        "b": [{"a": 2}, {"a": 3}],
    }


def test_the_limit_on_nesting_that_messages_name_is_the_one_applied() -> None:
    within, beyond = nested(MAX_DEPTH), nested(MAX_DEPTH + 1)
    assert canonical(within) == parse_and_write(within)
    with pytest.raises(InvalidInputError, match=f"deeper than {MAX_DEPTH} levels"):
        canonical(beyond)
    with pytest.raises(InvalidInputError, match=f"deeper than {MAX_DEPTH} levels"):
        parse(json.dumps(beyond))


def parse_and_write(document: Any) -> bytes:
    return canonical(parse(json.dumps(document)))
