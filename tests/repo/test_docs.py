from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools import check_docs
from tools.doc_blocks import Environment, PageRun, blocks_of, masked, steps_of, wrong_marks

PAGES = check_docs.pages(check_docs.ROOT)
WITH_BLOCKS = [page for page in PAGES if blocks_of(page.read_text(encoding="utf-8"))]
# Only `make docs` runs blocks that need these: models to train, clusters to start, trackers that are slow.
LEFT_TO_MAKE_DOCS = ("installs", "ray", "scikit-learn", "lightgbm", "torch", "tensorboard", "mlflow", "wandb")


def name_of(page):
    return page.relative_to(check_docs.ROOT).as_posix()


def environment(tmp_path) -> Environment:
    here = Path(sys.executable)
    return Environment(here, here, tmp_path / "run", frozenset(LEFT_TO_MAKE_DOCS))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere_and_what_a_block_needs_is_named(page):
    assert check_docs.broken_links(page) == []
    assert wrong_marks(page.read_text(encoding="utf-8")) == []


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name_of)
def test_blocks_run_and_shown_commands_print_what_is_shown(page, tmp_path):
    differences = check_docs.untrue_output(page, environment(tmp_path))
    assert not differences, "\n".join(differences)


def test_the_pages_a_reader_expects_are_there():
    names = {page.relative_to(check_docs.ROOT).as_posix() for page in PAGES}
    expected = {
        "README.md",
        "CONTRIBUTING.md",
        "SCOPE.md",
        "docs/architecture.md",
        "docs/plan.md",
        "docs/simulator.md",
        "changelog.d/README.md",
    }
    assert expected - names == set()


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n[a](page.md#one-two) [b](gone.md) [c](#three) [d](https://example.org/x) [e](page.md)\n"
        "![f](gone.png)\n```\n[g](in-code.md)\n```\n",
        encoding="utf-8",
    )
    assert check_docs.broken_links(page) == ["gone.md", "#three", "gone.png"]


def test_output_that_is_not_what_the_command_prints_is_replaced(tmp_path):
    text = "before\n```console\n$ muster --version\nmuster 99.9\n```\nafter\n"
    real = PageRun("page.md", text, environment(tmp_path)).run().text
    assert real.startswith("before\n```console\n$ muster --version\nmuster 0.")
    assert real.endswith("\n```\nafter\n")
    assert "99.9" not in real


def test_eight_decimals_are_a_number_and_no_id():
    assert masked("lr 0.00069504 16") == masked("lr 0.0019124 64")
    assert masked("gang fa628bf3") == masked("gang 12345678") != masked("gang 0.5")


def test_similar_output_may_differ_in_numbers_and_in_nothing_else(tmp_path):
    block = "$ echo 'a1b2c_00001 t_3910cb22_1  7.25 s  done'\nb2c1a_00003 t_ab9459e8_2 10 ms {}"
    text = f"<!-- docs: similar -->\n```console\n{block}\n```\n"
    same, other = text.format("done"), text.format("failed")
    assert PageRun("page.md", same, environment(tmp_path)).run().text == same
    assert "7.25 s  done" in PageRun("page.md", other, environment(tmp_path)).run().text


def test_python_blocks_are_one_program_with_its_hidden_parts_until_a_new_one_begins():
    text = (
        "<!-- setup\na = 1\n-->\n```python\nb = a\n```\n```sh\ntrue\n```\n```python\nc = b\n```\n"
        "<!-- docs: new -->\n```python\nd = 1\n```\n<!-- docs: file x.py -->\n```python\ne = 1\n```\n"
        "```text\nf\n```\n"
    )
    steps = [[block.text for block in step] for step in steps_of(blocks_of(text))]
    assert steps == [["true\n"], ["a = 1\n", "b = a\n", "c = b\n"], ["d = 1\n"], ["e = 1\n"]]


def test_a_block_that_fails_or_a_server_that_ends_is_a_problem_with_its_line(tmp_path):
    text = (
        "<!-- docs: file x.py -->\n```python\nraise SystemExit('from a file')\n```\n```sh\npython x.py\n```\n"
        "```python\nassert 1 == 2\n```\n<!-- docs: serves -->\n```sh\necho gone\n```\n"
    )
    problems = PageRun("page.md", text, environment(tmp_path)).run().problems
    assert [problem.splitlines()[0] for problem in problems] == [
        "page.md:5: the block fails:",
        "page.md:8: the block fails:",
        "page.md:12: the block fails:",
    ]
    assert [problem.splitlines()[-1] for problem in problems] == ["from a file", "AssertionError", "gone"]


def test_a_block_whose_library_is_absent_is_skipped_with_a_message_and_a_page_names_its_extras(tmp_path):
    text = "<!-- docs: needs ray -->\n```python\nraise SystemExit(1)\n```\n"
    run = PageRun("page.md", text, environment(tmp_path)).run()
    assert (run.problems, run.skipped) == ([], ["page.md:2: skipped, ray is not installed"])
    assert wrong_marks(text) == ["needs ray, but does not say how to install it"]
    assert wrong_marks(f'`pip install "muster-ml[ray]"`\n{text}') == []
    assert wrong_marks("<!-- docs: odd -->\n```sh\ntrue\n```\n") == ["line 2: odd"]


def test_output_in_a_block_that_is_not_run_is_found():
    assert wrong_marks("```text\n$ a\n$ b\n```\n\n```console\n$ a\nprinted\n```\n") == []
    assert wrong_marks("```text\n$ a\nprinted\n```\n") == ["output that is not checked: $ a"]


def test_programs_of_a_page_come_before_all_others(tmp_path):
    write = "from pathlib import Path\nPath('bin').mkdir()\nfile = Path('bin', 'sbatch')"
    hidden = f"<!-- setup\n{write}\nfile.write_text('#!/bin/sh\\necho 47\\n')\nfile.chmod(0o755)\n-->\n"
    text = f"{hidden}```console\n$ sbatch\n```\n"
    assert PageRun("page.md", text, environment(tmp_path)).run().text.endswith("$ sbatch\n47\n```\n")
