"""The errors edgekit raises, and the exit code each one ends the program with.

An exception means «could not check». A thing that was checked and is out of bounds is a value (a report with findings, exit code 1), never
an exception.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import re
from collections.abc import Iterable
from types import ModuleType

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the operating system says when a disk is full: no fault of a model or of a tool, so that no seam translates it."""


class EdgekitError(Exception):
    """Base of all edgekit errors: what happened, with the offending value, and a hint on what to do next."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EdgekitError):
    """A bad option, profile, calibration set or farm file."""

    exit_code = 2


class MissingPackageError(EdgekitError):
    """A package, system program or isolated tool that the work needs is absent."""

    exit_code = 3


class ConversionError(EdgekitError):
    """The model cannot become an artifact for this target."""

    exit_code = 4


class DeviceError(EdgekitError):
    """The device could not be reached or used; `device` names it, `reason` is one stable word (`offline`, `disk-full`, ...)."""

    exit_code = 5

    def __init__(self, message: str, hint: str | None = None, *, device: str = "", reason: str = "failed") -> None:
        super().__init__(message, hint)
        self.device = device
        self.reason = reason


class RunnerError(EdgekitError):
    """The runner started on the device and failed; `stage` says where (`library`, `model`, `prepare`, `input`, `invoke`, `output`)."""

    exit_code = 6

    def __init__(self, message: str, hint: str | None = None, *, stage: str = "invoke") -> None:
        super().__init__(message, hint)
        self.stage = stage


class BundleError(EdgekitError):
    """A bundle that is corrupt, hostile or newer than this edgekit."""

    exit_code = 7


class PluginError(EdgekitError):
    """A plug-in that would not load."""

    exit_code = 8


def close_match(word: str, known: Iterable[str]) -> str:
    """«did you mean X?» for a mistyped word, or the known words when nothing is close."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"


def first_line(error: BaseException, most: int = 200) -> str:
    """What a foreign exception says, in one line: without ONNX Runtime's status, source lines and signatures, which tell a user nothing."""
    first, *more = (str(error).strip() or type(error).__name__).splitlines()
    text = " ".join([first, *(line.strip() for line in more)]) if first.endswith(":") else first  # what is listed below belongs to it
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' Status Message: ", _running, text)
    return re.sub(r"/onnxruntime_src/\S+:\d+ .*?\) (?:\[with [^]]*\] )?", "", text).strip()[:most] or type(error).__name__


def _running(found: re.Match[str]) -> str:
    return f"{found[1]} in layer {found[2]}: " if found[2] else f"{found[1]}: "


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a heavy package where it is used.

    Raises `MissingPackageError` naming the extra to install when it is absent.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise MissingPackageError(
            f"{purpose} needs the package {missing}, which cannot be imported ({error})", f"pip install 'edgekit[{extra}]'"
        ) from error
