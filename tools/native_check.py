"""``make native-check``: warnings, format and sanitizers of the compiled part, with the tools that are installed.

Every compiler checks that each header compiles alone and that there is no warning, for every size of vectors. Then
``tests/training/native_check.cc``, which needs neither Python nor XLA, runs under AddressSanitizer with
UndefinedBehaviorSanitizer, and under ThreadSanitizer. What is skipped is printed, with the reason.
"""

import os
import platform
import shutil
import subprocess
import sys
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
    formatter = shutil.which("clang-format")
    if formatter is None:
        return skip("format", "clang-format is not installed")
    files = [*sorted(NATIVE.glob("*.h")), *sorted(NATIVE.glob("*.cc")), PROGRAM]
    return check("format", formatter, "--dry-run", "--Werror", *files)


def check_warnings(compiler: str, folder: Path) -> bool:
    """Each header alone, and the library with all optimisations, which find more."""
    alone = folder / "alone.cc"
    results = []
    for header in sorted(NATIVE.glob("*.h")):
        alone.write_text(f'#include "{header.name}"\n')
        results.append(check(f"{compiler}: {header.name} alone", compiler, *STRICT, "-fsyntax-only", alone))
    for flags in VECTORS:
        command = (compiler, *STRICT, "-O3", "-fPIC", *flags, "-isystem", jax.ffi.include_dir(), "-c", "-o", os.devnull)
        name = " ".join((f"{compiler}: warnings", *flags))
        results.append(check(name, *command, NATIVE / "simulation.cc"))
    return all(results)


def check_sanitizers(compiler: str, folder: Path) -> bool:
    results = []
    empty, made = folder / "empty.cc", folder / "program"
    empty.write_text("int main() {}\n")
    for sanitizer in SANITIZERS:
        name, flag = f"{compiler}: {sanitizer} sanitizer", f"-fsanitize={sanitizer}"
        if run(compiler, flag, empty, "-o", made).returncode or run(made).returncode:
            results.append(skip(name, f"{compiler} cannot make a program with {flag}"))
            continue
        command = (compiler, *STRICT, "-O1", "-g", "-march=native", "-fno-sanitize-recover=all", flag)
        results.append(check(f"{name}, compiling", *command, PROGRAM, "-o", made) and check(name, made))
    return all(results)


def main() -> None:
    results = [check_format()]
    with tempfile.TemporaryDirectory() as folder:
        for compiler in ("g++", "clang++"):
            if shutil.which(compiler) is None:
                results.append(skip(compiler, "it is not installed"))
                continue
            results += [check_warnings(compiler, Path(folder)), check_sanitizers(compiler, Path(folder))]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
