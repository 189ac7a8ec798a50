"""Make the pictures of the docs from a real run of the quickstart: the live view as SVG, the plot as PNG.

Run by `make docs` (into build/docs/pictures, for the site) and `make pictures` (into docs/pictures, for the
README). The live view is what a terminal of 100 columns shows when half of the trials have ended.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from fcntl import ioctl
from itertools import groupby
from pathlib import Path

import pyte
from PIL import Image
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "tune" / "quickstart.py"
COLUMNS, LINES = 100, 26
ENDED = re.compile(r"(\d+) (?:TERMINATED|terminated|done|ended|finished)")
ENOUGH = 20
# rich's SVG has no size of its own: in a table it would be as small as its heading.
SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
# It loads its font from the web; the fonts of the reader's computer do as well.
FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def watched(command: list[str], home: str) -> pyte.Screen:
    """Run a command on a terminal of its own; return the screen when enough trials have ended."""
    driver, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    wanted, screen = pyte.Screen(COLUMNS, LINES), pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "HOME": home}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as run:
        os.close(terminal)
        is_taken = is_best = False
        while data := _read(driver):
            stream.feed(data)
            shown = "\n".join(screen.display)
            if not is_best and max(map(int, ENDED.findall(shown)), default=0) >= ENOUGH:
                is_best = "RUNNING" in shown  # between two trials there is a moment without one
                if is_best or not is_taken:
                    wanted.buffer.update({row: dict(screen.buffer[row]) for row in range(LINES)})
                is_taken = True
    os.close(driver)
    if run.returncode or not is_taken:
        raise SystemExit(
            "\n".join([*screen.display, "pictures: the quickstart did not show what was expected"])
        )
    return wanted


def _read(driver: int) -> bytes:
    try:
        return os.read(driver, 1 << 16)
    except OSError:  # the last process has closed the terminal
        return b""


def as_text(screen: pyte.Screen) -> Text:
    """Return the screen as text with colours, without the empty lines at its end."""
    lines = []
    for row in range(LINES):
        cells = [screen.buffer[row].get(column, screen.default_char) for column in range(COLUMNS)]
        line = Text()
        for (colour, bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            line.append("".join(cell.data for cell in run), Style(color=_colour(colour), bold=bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return Text("\n").join(lines)


def _colour(name: str) -> str | None:
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return None if name == "default" else {"brown": "yellow"}.get(name, name).replace("bright", "bright_")


def save_live_view(screen: pyte.Screen, path: Path) -> None:
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(as_text(screen))
    console.print(" ")
    svg = FONT.sub("", console.export_svg(title="python quickstart.py"))
    svg = SIZE.sub(r'\g<0> width="\1" height="\2"', svg.replace("Fira Code", "ui-monospace"), count=1)
    path.write_text(svg, encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Makes the pictures of the docs.")
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args(arguments).directory
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="muster-pictures-") as home:
        screen = watched([sys.executable, str(SCRIPT), f"{home}/results"], home)
        save_live_view(screen, directory / "live.svg")
        with Image.open(Path(home, "results", "digits", "results.png")) as plot:
            few = plot.convert("RGB").quantize(160)
        few.save(directory / "plot.png", optimize=True)
    sys.stdout.write(f"pictures: live.svg and plot.png in {directory}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
