from __future__ import annotations

import os
import pty
import tty

from muster.base.clock import SystemClock
from muster.tune.reporting.live import LINES_PER_S, OutputTap


class Tapped:
    """A tap over a terminal without a reader, fed through its own pipe as a child process would."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        self.shown = []
        self.tap = OutputTap(self.slave, self.shown.extend, clock=SystemClock())
        self.child = os.dup(self.tap._write)
        self.tap.open()

    def feed(self, data):
        while data:
            data = data[os.write(self.child, data) :]

    def close(self):
        self.tap.close()

    def after(self, data, count):
        """What a child that lives on writes, as it reaches the terminal."""
        self.feed(data)
        found = b""
        while len(found) < count:
            found += os.read(self.master, 1000)
        os.close(self.child)
        return found


def test_lines_are_shown_whole_and_in_order():
    tapped = Tapped()
    tapped.feed(b"one\ntw")
    tapped.feed("o\nthree ä\n".encode())
    tapped.close()
    assert tapped.shown == ["one", "two", "three ä"]


def test_a_progress_bar_that_overwrites_itself_shows_its_last_state():
    tapped = Tapped()
    tapped.feed(b"10%\r50%\r100%\ndone\r\n")
    tapped.close()
    assert tapped.shown == ["100%", "done"]


def test_a_line_without_an_end_is_shown_at_the_close():
    tapped = Tapped()
    tapped.feed(b"a question? ")
    tapped.close()
    assert tapped.shown == ["a question? "]


def test_a_blank_line_is_a_line():
    tapped = Tapped()
    tapped.feed(b"\none\n\n")
    tapped.close()
    assert tapped.shown == ["", "one", ""]


def test_bytes_that_are_no_text_do_no_harm():
    tapped = Tapped()
    tapped.feed(b"\xff\xfe\n")
    tapped.close()
    assert tapped.shown == ["\ufffd\ufffd"]


def test_a_flood_is_cut_and_counted():
    tapped = Tapped()
    tapped.feed(b"spam\n" * 200_000)
    tapped.close()
    told = [line for line in tapped.shown if line == "spam"]
    assert LINES_PER_S <= len(told) <= 20 * LINES_PER_S


def test_what_comes_after_the_close_passes_through():
    tapped = Tapped()
    tapped.feed(b"before\n")
    tapped.close()
    assert tapped.after(b"after\n", 6) == b"after\n"
    assert tapped.shown == ["before"]


def test_closing_twice_or_before_the_first_use_is_harmless():
    tapped = Tapped()
    tapped.close()
    tapped.close()
    unused = OutputTap(tapped.slave, tapped.shown.extend, clock=SystemClock())
    unused.close()
    unused.close()
    assert tapped.shown == []


def test_what_daemons_of_ray_say_is_left_to_their_log_files():
    tapped = Tapped()
    tapped.feed(
        b"one\n\x1b[33m(raylet)\x1b[0m file_system_monitor: full\n(raylet) a\n(train_1) two (raylet)\n"
    )
    tapped.feed(b"(raylet) alone\n")
    tapped.close()
    assert tapped.shown == ["one", "(train_1) two (raylet)"]
