"""Compile the library: ``python -m workbench.native``."""

import sys

from workbench.native import CannotCompileError, build

if __name__ == "__main__":
    try:
        said = f"Compiled for this processor: {build()}"
    except CannotCompileError as problem:
        said = f"Nothing is compiled, XLA does it all: {problem}"
    sys.stdout.write(said + "\n")
