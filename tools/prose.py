"""Check the wording of docs and source: banned phrases, passive sentences, sentence length.

    python tools/prose.py phrases [PATH ...]     every banned phrase, with its place
    python tools/prose.py sentences [PATH ...]   passive share, longest and median sentence of each page
    python tools/prose.py passives PATH ...      the passive sentences themselves

Phrases are searched in pages and in `src` (strings, docstrings, comments, identifiers). A sentence is passive
when a form of "be" precedes a past participle and no "by ..." follows. Code, tables and quoted output are not
sentences.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BANNED: dict[str, str] = {
    r"goes? on\b(?! (?:the|a|an|one|each|another|top)\b)": "continues, resumes, keeps running",
    r"(?:is|are|was|were|be|been) told": "muster notifies, reports, warns, logs",
    r"(?:can|could|to) be had": "is available",
    r"for ever": "forever",
    r"anew": "again, from scratch",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?<!there\s)(?:is|are|was) no (?!longer|more|less|fewer|better|worse|larger|later)\w+": "is not a",
    r"nobody owns": "orphaned",
    r"of (?:its|their|his|my|your|our) own": "its own X, separate, dedicated",
    r"(?:gives?|gave|giving|given) back": "releases, terminates",
    r"bought": "launched",
}
# Translated words, on pages only and not in code: names such as `buys_offers` keep them.
TRANSLATED = re.compile(
    r"\b(?:buys?|buying|purchased?|whoever|beside|dearer|dear|empt(?:y|ies|ying) (?:nodes?|machines?)|"
    r"will be taken|was taken|are taken|so long as|in sum|at a stretch)\b",
    re.IGNORECASE,
)
# What is quoted from elsewhere: names of Ray, of a cloud or of a language.
ALLOWED = re.compile(r"amend|recommend|commend|mendel", re.IGNORECASE)
# British spellings of words that occur often; pages are in American English.
BRITISH = re.compile(
    r"\b\w*(?:ptimis(?:e|ing|ation)|[Mm](?:in|ax)imis(?:e|ing)|[Bb]ehaviour)\w*|\b[Cc]olours?\b|[Nn]eighbour"
)
MOST_PASSIVE, MOST_WORDS, MOST_MEDIAN = 0.10, 40, 16  # of all pages; may only fall
# A space of a phrase may be the end of a line, with the mark of a comment or a quote at the next one's start.
SPACE = r"(?:[ _]|[ \"]*\n\s*(?:#|//|>|f?\")?\s*)"
PATTERN = re.compile(
    r"(?<![A-Za-z])(?:" + "|".join(f"(?:{phrase})" for phrase in BANNED).replace(" ", SPACE) + r")(?![a-z])",
    re.IGNORECASE,
)

IRREGULAR = (
    "made|done|given|taken|kept|held|written|read|run|sent|found|built|seen|shown|set|put|left|lost|chosen|drawn|"
    "known|said|meant|told|begun|broken|brought|bought|caught|cut|driven|forgotten|hidden|hit|laid|led|let|met|"
    "overwritten|paid|reset|rewritten|sold|spent|split|stood|stolen|struck|thrown|understood|woken|won|worn"
)
PASSIVE = re.compile(
    rf"\b(?:is|are|was|were|be|been|being|gets|get)\s+(?:(?:not|never|always|only|also|then|still|already|often|"
    rf"now|once|again|both|all|\w+ly)\s+)*(?:\w{{2,}}ed|{IRREGULAR})\b",
    re.IGNORECASE,
)
# Participles that describe a state rather than an act: "is limited to", "is based on".
STATES = re.compile(
    r"\b(?:is|are|was|were|be)\s+(?:based|supported|needed|required|allowed|named|called|interested|"
    r"limited|located|related|nested|unused|mixed|red)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Sentence:
    """One sentence of a page with the line it starts on."""

    page: Path
    line: int
    text: str

    @property
    def words(self) -> int:
        return len(self.text.split())

    @property
    def is_passive(self) -> bool:
        text = STATES.sub("", self.text)
        match = PASSIVE.search(text)
        return match is not None and not re.search(r"\bby\b", text[match.end() :])


def pages(root: Path = ROOT) -> list[Path]:
    """Return what people read: README, the docs and the pages beside them."""
    top = [
        root / name for name in ("README.md", "CONTRIBUTING.md", "SCOPE.md", "CHANGELOG.md", "SECURITY.md")
    ]
    return [
        *(page for page in top if page.exists()),
        *sorted((root / "docs").rglob("*.md")),
        root / "bench" / "README.md",
    ]


def sources(root: Path = ROOT) -> list[Path]:
    """Return the files of `src` and the examples that people read."""
    kinds = {".py", ".js", ".html", ".yaml"}
    return sorted(
        file for top in ("src", "examples") for file in (root / top).rglob("*") if file.suffix in kinds
    )


def banned_phrases(files: list[Path]) -> Iterator[tuple[Path, int, str]]:
    """Yield each banned phrase with its file and line; code blocks of pages count too."""
    for file in files:
        text = file.read_text(encoding="utf-8")
        for match in PATTERN.finditer(text):
            if not ALLOWED.fullmatch(match[0]):
                yield file, text.count("\n", 0, match.start()) + 1, " ".join(match[0].split())


def british_words(files: list[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each word in British spelling with its file."""
    for file in files:
        for match in BRITISH.finditer(file.read_text(encoding="utf-8")):
            yield file, match[0]


def translated_words(files: list[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each translated word of the pages, outside of code, with its file."""
    for file in files:
        text = re.sub(
            r"^```.*?^```|`[^`\n]*`", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for match in TRANSLATED.finditer(text):
            yield file, match[0]


def sentences(page: Path) -> Iterator[Sentence]:
    """Yield the sentences of a page's running text and list items."""
    text = re.sub(
        r"^(```|~~~).*?^\1",
        lambda block: "\n" * block[0].count("\n"),
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    text = re.sub(r"<!--.*?-->", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=[#|]))", text):
        is_code = block.lstrip("\n").startswith("    ")
        if block.strip() and not is_code and not block.lstrip().startswith(("#", "|", "![", "<")):
            yield from _sentences_of(page, line + len(block) - len(block.lstrip("\n")), block)
        line += block.count("\n")


def _sentences_of(page: Path, line: int, block: str) -> Iterator[Sentence]:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"^\s*(?:[-*]|\d+\.|>)\s", "", block))
    plain = re.sub(r"`[^`]*`", "CODE", " ".join(plain.split()))
    for part in re.split(r"(?<=[.!?])\s+(?=[A-Z*\"(]|muster )", plain):
        if len(part.split()) > 2:
            yield Sentence(page, line, part)


def _report(files: list[Path]) -> None:
    everything: list[Sentence] = []
    for page in files:
        of_page = list(sentences(page))
        everything += of_page
        if of_page:
            _print(_figures(str(page.relative_to(ROOT)), of_page))
    _print(_figures("all", everything))


def _figures(name: str, listed: list[Sentence]) -> str:
    share = 100 * sum(sentence.is_passive for sentence in listed) / len(listed)
    lengths = [sentence.words for sentence in listed]
    return (
        f"{share:5.1f} % passive, {max(lengths):3} words at most, {statistics.median(lengths):4.1f} median, "
        f"{len(listed):4} sentences  {name}"
    )


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: list[str]) -> None:
    command, *paths = arguments or ["sentences"]
    files = [Path(path).resolve() for path in paths]
    if command == "phrases":
        listed = list(banned_phrases(files or [*pages(), *sources()]))
        for file, number, phrase in listed:
            _print(f"{file.relative_to(ROOT)}:{number}: {phrase}")
        _print(f"{len(listed)} banned phrases")
    elif command == "passives":
        for sentence in (sentence for page in files or pages() for sentence in sentences(page)):
            if sentence.is_passive:
                _print(f"{sentence.page.relative_to(ROOT)}:{sentence.line}: {sentence.text}")
    else:
        _report(files or pages())


if __name__ == "__main__":
    main(sys.argv[1:])
