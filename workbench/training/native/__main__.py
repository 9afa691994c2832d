"""Compile the library: ``python -m workbench.native``."""

import sys

from workbench.training.native import CannotCompileError, build


def main() -> None:
    """Compile it, or say why not."""
    try:
        said = f"Compiled for this processor: {build()}"
    except CannotCompileError as problem:
        said = f"Nothing is compiled, XLA does it all: {problem}"
    sys.stdout.write(said + "\n")


if __name__ == "__main__":
    main()
