"""Colours and sizes of the PNG. Okabe and Ito's palette and viridis: told apart with any colour vision."""

from __future__ import annotations

INK = "#1f2933"
SOFT = "#616e7c"  # text that explains
FAINT = "#cbd2d9"  # lines that only guide the eye
BEST = "#d55e00"
FULL = "#0072b2"  # trials that ran as long as the longest
EARLY = "#8fa3b8"  # trials that ended before
FAILED = "#000000"
BAR = "#0072b2"
BAR_BY_CHANCE = "#b8c4d0"
RAMP_NAME = "viridis"  # dark: good
RAMP_END = 0.93  # its last bit is too light on white

TEXT_SIZE = 9.0
SMALL = 8.0
TITLE_SIZE = 11.0
HEAD_SIZE = 14.0
DPI = 130
