"""``python -m workbench.native``: compile local training for this processor (`workbench.training.native`)."""

import sys

from workbench.training.native import CannotCompileError, build


def main() -> None:
    """Compile the library, or report why it cannot be compiled."""
    try:
        message = f"Compiled for this processor: {build()}"
    except CannotCompileError as problem:
        message = f"Not compiled, so attacks run in XLA: {problem}"
    sys.stdout.write(message + "\n")


if __name__ == "__main__":
    main()
