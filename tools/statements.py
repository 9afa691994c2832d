"""Count the Python statements of a folder, without docstrings: python tools/statements.py [FOLDER]"""

import ast
import sys
from collections import Counter
from pathlib import Path


def statements(source: str) -> int:
    """The statements in a source text, without docstrings.

    >>> statements('def f():\\n    "What it does."\\n    return 1')
    2
    """
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(
        isinstance(node, ast.stmt) - (isinstance(node, documented) and ast.get_docstring(node) is not None)
        for node in ast.walk(tree)
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "workbench")
    counts: Counter[str] = Counter()
    for file in sorted(folder.rglob("*.py")):
        inside = file.relative_to(folder)
        counts[inside.parts[0] if len(inside.parts) > 1 else inside.name] += statements(
            file.read_text(encoding="utf-8")
        )
    for name, count in counts.most_common():
        print(f"{count:6,} {name}")
    print(f"{counts.total():6,} in all")
