from __future__ import annotations

import statistics

from tools import prose


def test_no_banned_phrase_in_what_people_read():
    assert [str(found) for found in prose.banned_phrases([*prose.pages(), *prose.sources()])] == []


def test_pages_are_in_american_english():
    assert [str(found) for found in prose.british_words(prose.pages())] == []


def test_pages_use_no_translated_words():
    assert [(file.name, word) for file, word in prose.translated_words(prose.pages())] == []


def test_sentences_are_active_and_short():
    listed = [sentence for page in prose.pages() for sentence in prose.sentences(page)]
    lengths = [sentence.words for sentence in listed]
    assert sum(sentence.is_passive for sentence in listed) / len(listed) <= prose.MOST_PASSIVE
    assert [str(one) for one in listed if one.words > prose.MOST_WORDS] == []
    assert statistics.median(lengths) <= prose.MOST_MEDIAN


def test_a_phrase_is_found_across_lines_and_in_names(tmp_path):
    file = tmp_path / "page.py"
    file.write_text('# a thread of its\n#   own\ngive_back = "told" "is\\n"\nx = ("it is "\n     "no use")\n')
    assert [(line, phrase) for _, line, phrase in prose.banned_phrases([file])] == [
        (1, "of its # own"),
        (3, "give_back"),
        (4, 'is " "no use'),
    ]


def test_a_passive_needs_an_actor(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nThe trial is stopped at once. The trial is stopped by muster. muster stops it.\n"
    )
    assert [sentence.is_passive for sentence in prose.sentences(page)] == [True, False, False]


def test_british_words_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("An optimiser, its behaviour and a colour; an optimist promises color.\n")
    assert [word for _, word in prose.british_words([page])] == ["optimiser", "behaviour", "colour"]


def test_translated_words_are_found_outside_of_code(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("`buys_offers`\n\n```text\nit buys one\n```\n\nmuster buys a machine\nbeside it.\n")
    assert [word for _, word in prose.translated_words([page])] == ["buys", "beside"]
