"""What this environment has, what is missing for which job, and the one command that helps."""

from __future__ import annotations

import importlib.util
import shutil
import sys

import msgspec

from edgekit import __version__, runtimes, tools, versions
from edgekit.errors import EdgekitError
from edgekit.transports import virtual

JOBS = {
    "PyTorch models (extra torch)": (("torch", "litert_torch"), "pip install 'edgekit[torch]'"),
    "Keras and TensorFlow models (extra tensorflow)": (("tensorflow",), "pip install 'edgekit[tensorflow]'"),
    "ONNX models (extra onnx)": (("onnx", "onnxruntime", "onnxslim"), "pip install 'edgekit[onnx]'"),
    "LiteRT artifacts (extra litert)": (("ai_edge_litert", "ai_edge_quantizer"), "pip install 'edgekit[litert]'"),
    "microcontroller artifacts (extra mcu)": (("tflite_micro", "bakenn", "ethosu"), "pip install 'edgekit[mcu]'"),
    "Core ML artifacts (extra coreml)": (("coremltools",), "pip install 'edgekit[coreml]'"),
    "Hexagon artifacts (extra qnn)": (("onnxruntime_qnn",), "pip install 'edgekit[qnn]'"),
    "images as calibration data (extra images)": (("PIL",), "pip install 'edgekit[images]'"),
    "devices over adb (extra adb)": (("adbutils",), "pip install 'edgekit[adb]'"),
    "iPhones over USB (extra ios)": (("pymobiledevice3",), "pip install 'edgekit[ios]'"),
    "building the runner for phones and boards (extra native)": (("ziglang",), "pip install 'edgekit[native]'"),
    "isolated tools (extra tools)": (("uv",), "pip install 'edgekit[tools]'"),
}


class Check(msgspec.Struct, frozen=True):
    """One thing looked at: whether it is there, what was found, and the command that brings it."""

    name: str
    ok: bool
    found: str
    fix: str = ""


def checks() -> tuple[Check, ...]:
    """Everything edgekit may need, looked at without importing any framework."""
    rows = [Check("edgekit", True, f"{__version__} on Python {sys.version.split()[0]}")]
    rows += [_packages(name, modules, fix) for name, (modules, fix) in JOBS.items()]
    rows += [_tool(status) for status in tools.status()]
    rows += [*_virtual_devices(), _ssh(), *_runtimes()]
    return tuple(rows)


def _packages(name: str, modules: tuple[str, ...], fix: str) -> Check:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        return Check(name, False, f"missing: {', '.join(missing)}", fix)
    found = versions.tool_versions()
    return Check(name, True, ", ".join(f"{m} {found[m.replace('_', '-')]}" if m.replace("_", "-") in found else m for m in modules))


def _tool(status: tools.Status) -> Check:
    name = f"isolated tool {status.name}"
    if status.installed:
        return Check(name, True, f"{status.requirements[0]} in {status.folder}")
    return Check(name, False, "not installed", f"edgekit tools install {status.name}")


def _virtual_devices() -> list[Check]:
    """One row for each kind of virtual device: those of one module need the same."""
    kinds: dict[str, list[str]] = {}
    for entry in virtual.DEVICES.values():
        kinds.setdefault(entry.module, []).append(entry.name)
    return [_virtual(names) for names in kinds.values()]


def _virtual(names: list[str]) -> Check:
    name = f"virtual:{', '.join(names)}"
    lacks = virtual.missing(names[0])
    if not lacks:
        return Check(name, True, "ready")
    parts = [line.partition(": ") for line in lacks]
    return Check(name, False, f"missing: {', '.join(what for what, _, _ in parts)}", " && ".join(fix for _, _, fix in parts))


def _ssh() -> Check:
    found = shutil.which("ssh")
    return Check("Linux boards over ssh", found is not None, found or "no ssh client", "" if found else "apt-get install openssh-client")


def _runtimes() -> list[Check]:
    return [_runtime(runtime, platform) for runtime, platform in runtimes.INSTALLABLE]


def _runtime(runtime: str, platform: str) -> Check:
    name = f"{runtime} library for {platform}"
    try:
        return Check(name, True, str(runtimes.library(runtime, platform).name))
    except EdgekitError as error:
        return Check(name, False, "not installed", error.hint or "")
