"""Words as they would be typed, and pages whose text is nonsense."""

from __future__ import annotations

import time

import pytest

from randslot.pages import NO_TEXT, Page
from randslot.pages.text import clean_word, is_legible, is_plain, join_parts, split_words
from support.pdf import write_drawing, write_lines

ENGLISH = (
    "This is the manual of a small machine for the kitchen . It is to be used with care , and only in the house . "
    "The handle of the lid must be turned until it clicks ; then the motor can be started with the green button ."
)
RUSSIAN = "Текущая версия этого документа доступна по адресу в каталоге автора и может быть изменена без объявления"


def test_what_is_plain_needs_no_cleaning():
    plain = [f"a{chr(code)}e" for code in range(0x3000) if is_plain(f"a{chr(code)}e")]
    assert len(plain) > 300
    assert list(map(clean_word, plain)) == plain


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("exam\x02ple", "example"),
        ("(exam\x02ple),", "(example),"),
        ("COVID\x0219", "COVID-19"),
        ("Linux\x02System", "Linux-System"),
        ("1990\x022000", "1990-2000"),
        ("x86\x02based", "x86-based"),
        ("exam\x02", "exam-"),
        ("one\x02two\x02three", "onetwothree"),
        ("größ\x02ere", "größere"),
        ("soft\xad\r\nware", "software"),
        ("x\ufffe\ny", "xy"),
    ],
)
def test_a_hyphen_at_the_end_of_a_line_goes_only_between_letters(word, expected):
    assert clean_word(word) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Lib\xb4eration", "Libération"),
        ("B\xa8ottcher", "Böttcher"),
        ("na\xa8\u0131ve", "naïve"),
        ("Fran\xb8cais", "Français"),
        ("\u02c7Cech", "Čech"),
        ("Probl`eme", "Problème"),
        ("`a", "`a"),
        ("`quoted'", "`quoted'"),
        ("echo`uname`", "echo`uname`"),
        ("don`t", "don`t"),
        ("\xb4x\xb4", "\xb4x\xb4"),
    ],
)
def test_accents_of_old_fonts_are_joined_with_their_letters(word, expected):
    assert clean_word(word) == expected


def test_a_hyphen_stays_or_goes_as_elsewhere_on_the_page():
    known = split_words('A "well-known" WARRANTY; apt-get /get')
    assert join_parts("well\x02known", known) == "well-known"
    assert join_parts("(Well\x02Known)", known) == "(Well-Known)"
    assert join_parts("WAR\x02RANTY.", known) == "WARRANTY."
    assert join_parts("apt\x02get", known) == "apt-get"
    assert join_parts("/get/apt/Ne\x02tRestrict", known) == "/get/apt/NetRestrict"
    assert join_parts("/a/war\x02ranty-x", known) == "/a/warranty-x"
    assert join_parts("UNDE\x02TERMINED", known) == "UNDE-TERMINED"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("of\ufb01ce", "office"),
        ("e\u0301te\u0301", "été"),
        ("\uff21\uff22\uff11", "AB1"),
        ("\uff76\uff9e", "ガ"),
        ("\u2f00\u2f42", "一文"),
        ("\ufee3\ufeae\ufea3\ufe92\ufe8e", "مرحبا"),
        ("\ufefb", "لا"),
        ("\ufe70", "\u064b"),
        ("\ufb2a", "\u05e9\u05c1"),
        ("\U0001d465\U0001d7cf", "x1"),
        ("\ud835\udc65", "x"),
        ("\uf731\uf739\uf739\uf735", "1995"),
        ("\u200fשלמ\u200e", "שלמ"),
        ("zero\u200bwidth\u2060\ufeff", "zerowidth"),
        ("葛\U000e0100", "葛"),
        ("a\x00b\x1b\x85c\x7f", "abc"),
        ("a\ue000b\ufffdc\U0010fffd\u0378", "abc"),
        ("m²", "m²"),
        ("½", "½"),
        ("naïve", "naïve"),
        ("日本語", "日本語"),
        ("😀", "😀"),
    ],
)
def test_words_are_as_they_would_be_typed(word, expected):
    assert clean_word(word) == expected


def test_a_long_word_of_marks_takes_no_time():
    start = time.perf_counter()
    assert len(clean_word("\u0301\u0316" * 50_000)) == 100_000
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "text",
    [
        ENGLISH,
        RUSSIAN,
        "τρέχουσα έκδοση αυτού του εγγράφου",
        "これは小さな台所の機械の取扱説明書です。 注意して使用してください。",
        "这是一本小型厨房机器的手册。",
        "هذا هو دليل آلة صغيرة للمطبخ",
        "זהו מדריך למכונה קטנה למטבח",
        "นี่คือคู่มือของเครื่อง",
        "Zażółć gęślą jaźń " * 30,
        "Đây là sổ tay hướng dẫn sử dụng của một chiếc máy nhỏ " * 5,
        "if (x != y) { a[i] += b[i]; } else { /* nothing */ return NULL; } });",
        "\\def\\pxrr@k@get@mark@c#1#2\\pxrr@nil#3{% \\ifnum\\pxrr@cntr<\\pxrr@nxt " * 10,
        "1 0.25 3.14 17 2026 -5 1e-7 99.9 % " * 20,
        "0x7fff deadbeef c0ffee 4f 5a 00 ff " * 20,
        "Chapter .......... 1 ---------- ========== ********** " * 20,
        "XX XXXX XXXX 05/18 " * 20,
        "mQENBFxK3lYBCAC7Zm9vYmFy Yk1zPQ0KDQpUaGUg " * 20,
        "Andante \ue050 \ue0a4 \ue0a4\ue0a4 \ue0a4\ue0a4\ue0a4 pp \x01 \x03\x03\x03 \x01 ff\x01 \x04p mf\x01 \ue0a4 "
        * 10,
        "where \uf8f1\uf8f2\uf8f3 holds \uf8ee\uf8ef\uf8f0 and \x12 otherwise \x00 x \x13 " * 10,
        "",
    ],
)
def test_text_is_legible(text):
    assert is_legible(text.split())


def shift(text: str, num: int) -> str:
    return "".join(chr(ord(character) - num) for character in text)


@pytest.mark.parametrize(
    "words",
    [
        shift(ENGLISH, 29).split(),
        [shift(word, 29) for word in ENGLISH.split()],
        [shift(word, 31) for word in ENGLISH.split()],
        [word.translate({code: code + 0xE000 for code in range(256)}) for word in ENGLISH.split()],
        ["\ufffd\ue001\ue002\x04" for _ in range(20)],
        RUSSIAN.encode("cp1251").decode("latin-1").split(),
        ["".join(f"(cid:{ord(character)})" for character in word) for word in ENGLISH.split()],
        ["\x83:\x84\x19", "\x86=\x84\x19\x87\x12", "A\x89\x02\x88b"] * 5,
        ['!"#$', "%&'(", ")*+!"] * 5,
        ["12", *(["\u0378\u0379\u0380\u0381"] * 12)],
    ],
)
def test_nonsense_is_not_legible(words):
    assert not is_legible(words)


def test_a_page_of_nonsense_has_no_layer(tmp_path):
    """As where a font gives the numbers of its glyphs for letters."""
    shifted = "7KLV LV WKH PDQXDO RI D VPDOO PDFKLQH IRU WKH NLWFKHQ"
    write_lines(tmp_path / "shifted.pdf", [shifted, "WKDW RSHQV LQ WKH KRXVH"])
    codes = " ".join(f"<{code:02x}> <{0xE000 + code:04x}>" for code in range(0x61, 0x7B))
    write_lines(tmp_path / "private.pdf", ["this page cannot be read by anyone"] * 3, codes=codes)
    for name in ("shifted.pdf", "private.pdf"):
        assert Page(tmp_path / name).text() == NO_TEXT


def test_a_page_keeps_the_words_that_can_be_read(tmp_path):
    codes = " ".join(f"<{code:02x}> <{0xE000 + code:04x}>" for code in range(0x61, 0x7B))
    write_lines(tmp_path / "x.pdf", ["THIS abc REMAINS xy AND zTHAT"], codes=codes)
    text = Page(tmp_path / "x.pdf").text()
    assert text.has_layer
    assert text.text == "THIS REMAINS AND THAT"


def test_text_from_right_to_left_is_in_logical_order(tmp_path):
    """A PDF draws the glyphs from the left: the last letter of a word and the last word first."""
    codes = "<61> <05E9> <62> <05DC> <63> <05D5> <64> <05DD>"
    write_drawing(tmp_path / "x.pdf", "BT /F1 12 Tf 50 300 Td (dcba bca) Tj ET", codes=codes)
    text = Page(tmp_path / "x.pdf").text()
    assert text.text == "שול שלום"
    first, second = text.words
    assert second.right < first.left
