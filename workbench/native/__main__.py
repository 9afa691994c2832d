"""Compile the library: ``python -m workbench.native``."""

import sys

from workbench.native import build

if __name__ == "__main__":
    path = build()
    said = f"Compiled for this processor: {path}" if path else "No C++ compiler that works here: XLA does it all."
    sys.stdout.write(said + "\n")
