"""Normalisers: what each step does, their JSON, where text may be cut, and files that ask for what can't be done."""

from __future__ import annotations

import base64
import random
import struct
import unicodedata

import pytest

from pellucid.base.errors import DataError
from pellucid.text import normalize
from pellucid.text.charsmap import CharsMap
from pellucid.text.graphemes import ClusterMap
from pellucid.text.normalize import (
    CollapseSpaces,
    Lowercase,
    Normalizer,
    Persian,
    Prepend,
    Replace,
    Strip,
    StripAccents,
    UnicodeForm,
)


def charsmap(pairs: dict[str, str]) -> bytes:
    """A precompiled map laid out like darts-clone's: block i holds the children of node i."""
    tree: dict[bytes, dict[int, bytes]] = {b"": {}}
    for key in pairs:
        raw = key.encode()
        for i in range(len(raw)):
            tree.setdefault(raw[:i], {})[raw[i]] = raw[: i + 1]
            tree.setdefault(raw[: i + 1], {})
    blocks = {node: 256 * (i + 1) for i, node in enumerate(tree)}
    units, strings = [0] * (256 * (len(tree) + 1)), b"\0"
    at = {b"": 0}
    for node, children in tree.items():
        for label, child in children.items():
            at[child] = blocks[node] ^ label
    for node, here in at.items():
        leaf = node.decode(errors="replace") in pairs
        offset = here ^ blocks[node]
        units[here] = (node[-1] if node else 0) | leaf << 8 | offset << 10
        if leaf:
            units[blocks[node]] = 1 << 31 | len(strings)
            strings += pairs[node.decode()].encode() + b"\0"
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + strings


MAP = {"ａ": "a", "\n": " ", "\u200b": "", "e\u0301": "é", "e\u0301\u0302": "ê", "𝐀": "A"}
STEPS = {
    "nfkc": (UnicodeForm("NFKC"), "ﬁ ①\u200c", "fi 1\u200c"),
    "nfd": (UnicodeForm("NFD"), "é", "e\u0301"),
    "lowercase": (Lowercase(), "ΑΣ İ A", "ας i\u0307 a".replace("ς", "σ")),
    "accents": (StripAccents(), "e\u0301a\u20dd می\u200cشود", "ea می\u200cشود"),
    "replace": (Replace("aa", "b"), "aaaaa.*", "bba.*"),
    "regex": (Replace(r"\s+", " ", regex=True), "a \u3000\t b\x1cc", "a b\x1cc"),
    "regex spaces": (Replace(" {2,}", "▁", regex=True), "a  b c", "a▁b c"),
    "regex escape": (Replace(r"\.\.", r"\1", regex=True), "a..b.", r"a\1b."),
    "prepend": (Prepend("▁"), "a", "▁a"),
    "prepend nothing": (Prepend("▁"), "", ""),
    "strip": (Strip(), "\u2003 a b\x1c\n", "a b\x1c"),
    "strip right": (Strip(left=False), " a ", " a"),
    "collapse": (CollapseSpaces(), "  a  b \n ", "a b \n"),
    "persian": (Persian(), "كتابي علىٌ ٤۴4 مـن می\u200cروم", "کتابی علی ۴۴4 من می\u200cروم"),
    "persian latin": (Persian(digits="latin"), "٤۴4", "444"),
    "persian as is": (Persian(digits=None, diacritics=True), "٤۴ مَن ي", "٤۴ مَن ی"),
    "charsmap": (CharsMap.of(charsmap(MAP)), "ａb\n\u200be\u0301\u0302\u0301 e\u0301x 𝐀𝐁", "ab ê\u0301 éx A𝐁"),
    "charsmap of one": (CharsMap.of(charsmap({"𝐀": "A"})), "a𝐀𝐁", "aA𝐁"),
    "charsmap of longer": (CharsMap.of(charsmap({"ab": "x"})), "aab b", "ax b"),
    "map of clusters": (ClusterMap(CharsMap.of(charsmap(MAP)).data), "ａ́b\n​é̂ é̂́𝐀́x", "ab é é̂́Áx"),
    "charsmap of none": (CharsMap.of(charsmap({})), "aab b", "aab b"),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    step, text, want = STEPS[name]
    normalizer = Normalizer([step])
    assert normalizer(text) == want
    assert Normalizer.from_json(normalizer.to_json()) == normalizer
    assert hash(Normalizer.from_json(normalizer.to_json())) == hash(normalizer)


def test_steps_follow_each_other() -> None:
    steps = Normalizer([UnicodeForm("NFD"), StripAccents(), Lowercase(), Prepend("▁")])
    assert steps("É") == "▁e"
    assert repr(Normalizer([Lowercase()])) == "Normalizer([Lowercase()])"
    assert not Normalizer()
    assert Normalizer()("É") == "É"
    assert steps


def test_persian_leaves_all_other_characters() -> None:
    persian = Persian()
    changed = {c for c in map(chr, range(0x110000)) if persian(c) != c}
    marks = {*map(chr, range(0x64B, 0x653)), "\u0670", "\u0640"}
    assert changed == {"ي", "ى", "ك", *map(chr, range(0x660, 0x66A)), *marks}
    text = unicodedata.normalize("NFC", "می\u200cخواهم ۱۲")
    assert Persian()(text) == text


@pytest.mark.parametrize("name", [name for name, (step, _, _) in STEPS.items() if step.local])
def test_text_may_be_cut_where_it_is_settled(name: str) -> None:
    rng = random.Random(name)
    alphabet = [*"aeé  \n.\tΣİ\u0301\u0302\u3000①ﬁｶﾞㅙ\u11ac\u1161가يك٤ّ\u200cی\x17👩\u200d🙂𝐀", "\U00011347\U0001133e"]
    for steps in ([STEPS[name][0]], [STEPS["charsmap"][0], UnicodeForm("NFC"), STEPS[name][0]]):
        normalizer, cuts = Normalizer(steps), 0
        for _ in range(500):
            text = "".join(rng.choices(alphabet, k=rng.randrange(30)))
            k = normalizer.settled(text)
            cuts += 0 < k < len(text)
            for more in ("", "\u0301", " ", "\u11ac"):
                assert normalizer(text[:k]) + normalizer(text[k:] + more) == normalizer(text + more)
        assert cuts > 100


def test_steps_that_know_their_ends_wait_for_all_of_the_text() -> None:
    for step in (Prepend("x"), Strip(), CollapseSpaces(), Replace("ab", "c"), Replace("a b", "c", regex=True)):
        assert Normalizer([Lowercase(), step]).settled("aa bb cc") == 0
    assert Normalizer().settled("aa bb") == 5


BAD = {
    "no object": ([1], "Normalizer: step 0: not a step; got 1, expected an object with a 'type'"),
    "unknown": (
        [{"type": "nmt"}],
        "Normalizer: step 0: an unknown step; got 'nmt', expected unicode, lowercase, strip_accents, replace, prepend, "
        "strip, collapse_spaces, persian, charsmap, cluster_map",
    ),
    "key": (
        [{"type": "lowercase"}, {"type": "prepend", "contend": "x"}],
        "Normalizer: step 1: unknown key; got 'contend'. hint: did you mean 'content'?",
    ),
    "value": ([{"type": "strip", "left": 1}], "Normalizer: step 0.left: wrong type; got 1, expected bool"),
    "form": (
        [{"type": "unicode", "form": "NFX"}],
        "Normalizer: step 0.form: not one of the choices; got 'NFX', expected 'NFC', 'NFD', 'NFKC', 'NFKD'",
    ),
    "regex": (
        [{"type": "replace", "pattern": "(a|b)", "content": "", "regex": True}],
        "Replace: a regular expression that is not supported; got '(a|b)', expected characters, escaped characters and "
        "\\s, each with a quantifier",
    ),
    "empty": (
        [{"type": "replace", "pattern": "", "content": ""}],
        "Replace: an empty pattern. hint: leave the step out",
    ),
    "nothing": (
        [{"type": "replace", "pattern": "a*", "content": "", "regex": True}],
        "Replace: a pattern that matches nothing at all; got 'a*'",
    ),
    "backwards": (
        [{"type": "replace", "pattern": "a{3,2}", "content": "", "regex": True}],
        "Replace: not a regular expression: min repeat greater than max repeat at position 2; got 'a{3,2}'",
    ),
    "base64": (
        [{"type": "charsmap", "data": "???"}],
        "CharsMap: a damaged character map: not base64: Only base64 data is allowed",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_file_asks_for_and_cannot_be_done(name: str) -> None:
    content, message = BAD[name]
    with pytest.raises(DataError) as error:
        Normalizer.from_json(content)
    assert str(error.value) == message


def test_choices_are_checked_where_they_are_made() -> None:
    with pytest.raises(DataError) as error:
        Persian(digits="roman")  # type: ignore[arg-type]
    assert str(error.value) == "Persian: no such digits; got 'roman', expected 'persian', 'latin', None"


def test_damaged_character_maps() -> None:
    good = charsmap(MAP)
    size = int.from_bytes(good[:4], "little")

    def message(block: bytes) -> str:
        with pytest.raises(DataError) as error:
            CharsMap.of(block)
        return str(error.value)

    assert message(b"") == "CharsMap: a damaged character map: no trie in it; got 0 bytes"
    assert message(good[:100]) == "CharsMap: a damaged character map: no trie in it; got 100 bytes"
    assert message(good[: 4 + size]) == "CharsMap: a damaged character map: a replacement lies outside"
    assert message(bytes(1 << 21)) == f"CharsMap: a damaged character map: too large; got {1 << 21} bytes"
    # Every node is a child of every node.
    circle = struct.pack("<128I", *(i | i << 10 for i in range(128)))
    assert message(struct.pack("<I", 512) + circle) == "CharsMap: a damaged character map: its trie has no end"


def test_random_damage_is_an_error_or_another_map() -> None:
    good, rng = charsmap({"a": "b", "é": "e", "ab": ""}), random.Random(0)
    used = [i for i in range(len(good)) if good[i]]
    refusals = 0
    for _ in range(300):
        block = bytearray(good)
        for at in rng.sample(used, 2):
            block[at] = rng.randrange(256)
        try:
            CharsMap(base64.b64encode(block).decode())("abé" * 3)
        except DataError:
            refusals += 1
    assert refusals > 30


def test_every_step_has_its_own_name() -> None:
    assert sorted(normalize.STEPS) == sorted({step.kind for step in normalize.STEPS.values()})
