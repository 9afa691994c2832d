"""``make native-check``: warnings, format and sanitizers of the compiled part, with the tools that are installed.

Every compiler checks that each header compiles alone and that there is no warning, for every size of vectors. Then
``tests/training/native_check.cc``, which needs neither Python nor XLA, runs under AddressSanitizer with
UndefinedBehaviorSanitizer, and under ThreadSanitizer. What is skipped is printed, with the reason.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import jax

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "workbench/training/native"
PROGRAM = ROOT / "tests/training/native_check.cc"
STRICT = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-ffp-contract=fast", "-pthread", f"-I{NATIVE}")
# Vectors of 4, 8 and 16 floats.
VECTORS = ((), ("-mavx2", "-mfma"), ("-mavx512f", "-mfma")) if platform.machine() == "x86_64" else ((),)
SANITIZERS = ("address,undefined", "thread")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    stops = {"ASAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1", "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, **stops}
    )


def check(name: str, *command: str | Path) -> bool:
    """Run a command, and print how it went."""
    done = run(*command)
    print(f"{'ok' if done.returncode == 0 else 'FAILED':8}{name}", flush=True)
    if done.returncode:
        print((done.stdout + done.stderr)[-4000:], flush=True)
    return done.returncode == 0


def skip(name: str, reason: str) -> bool:
    print(f"{'skipped':8}{name}: {reason}", flush=True)
    return True


def check_format() -> bool:
    files = [*sorted(NATIVE.glob("*.h")), *sorted(NATIVE.glob("*.cc")), PROGRAM]
    # Of this environment, because every version has a format of its own.
    return check("format", Path(sysconfig.get_path("scripts")) / "clang-format", "--dry-run", "--Werror", *files)


def compilers() -> list[str]:
    """$CXX, and every GCC and Clang of the path, each once: `g++` is often a link to `g++-12`."""
    found: dict[tuple[str, Path], str] = {}
    for folder in map(Path, os.get_exec_path()):
        for file in sorted(folder.glob("*++*")):
            if (kind := re.fullmatch(r"(g|clang)\+\+(-[0-9]+)?", file.name)) and os.access(file, os.X_OK):
                found.setdefault((kind[1], file.resolve()), file.name)
    return list(dict.fromkeys(filter(None, (os.environ.get("CXX"), *found.values()))))


def check_warnings(compiler: str, folder: Path) -> bool:
    """Each header alone, and the library with all optimisations, which find more."""
    alone, command = folder / "alone.cc", shlex.split(compiler)
    results = []
    for header in sorted(NATIVE.glob("*.h")):
        alone.write_text(f'#include "{header.name}"\n')
        results.append(check(f"{compiler}: {header.name} alone", *command, *STRICT, "-fsyntax-only", alone))
    for flags in VECTORS:
        options = ("-O3", "-fPIC", *flags, "-isystem", jax.ffi.include_dir(), "-c", "-o", os.devnull)
        name = " ".join((f"{compiler}: warnings", *flags))
        results.append(check(name, *command, *STRICT, *options, NATIVE / "simulation.cc"))
    return all(results)


def check_sanitizers(compiler: str, folder: Path) -> bool:
    results, command = [], shlex.split(compiler)
    empty, made = folder / "empty.cc", folder / "program"
    empty.write_text("int main() {}\n")
    for sanitizer in SANITIZERS:
        name, flag = f"{compiler}: {sanitizer} sanitizer", f"-fsanitize={sanitizer}"
        if run(*command, flag, empty, "-o", made).returncode or run(made).returncode:
            results.append(skip(name, f"{compiler} cannot make a program with {flag}"))
            continue
        options = ("-O1", "-g", "-march=native", "-fno-sanitize-recover=all", flag)
        is_made = check(f"{name}, compiling", *command, *STRICT, *options, PROGRAM, "-o", made)
        results.append(is_made and check(name, made))
    return all(results)


def main() -> None:
    results = [check_format()]
    with tempfile.TemporaryDirectory() as folder:
        if not (found := compilers()):
            skip("everything else", "there is no C++ compiler")
        for compiler in found:
            results += [check_warnings(compiler, Path(folder)), check_sanitizers(compiler, Path(folder))]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
