"""Run what follows `as-ray --` unchanged."""

import os
import sys

os.execvp(sys.argv[3], sys.argv[3:])
