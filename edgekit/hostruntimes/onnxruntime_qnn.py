"""ONNX Runtime with Qualcomm's QNN provider: on this machine its HTP simulator, with no fallback to the CPU.

The artifact is a folder with `model.onnx` and `build.json` (`backends/qnn`). The simulator computes as the chip does; it checks neither the
chip's generation nor how fast it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import MissingPackageError, RunnerError, first_line, require
from edgekit.hostruntimes import Executable, Runtime, check_options
from edgekit.hostruntimes.onnxruntime import Bound, assignment, bound
from edgekit.job import Delegation, Job

PROVIDER = "QNNExecutionProvider"

CODES = {
    "5000": "the context binary does not fit the device: it was built for another Hexagon generation or by another SDK version",
    "14001": "the device cannot be created: the skeleton library of this Hexagon generation is missing or not visible to the DSP",
    "1008": "the Hexagon library could not be opened: libQnnHtp, its stub or its skeleton is missing or of another SDK version",
    "30010": "the graph could not be prepared for this chip: the artifact and the libraries are of different versions",
}
"""What the load errors of phones mean, by QNN's own number (as field reports explain them)."""


SENTENCES = {
    "fallback to CPU EP has been explicitly": "the provider leaves it to the CPU",
    "Failed to compose Qnn graph": "the provider took it and could not put it into a QNN graph",
    "Failed to finalize QNN graph": "QNN took it and could not finalize the graph",
}
"""What the provider's own phrases say."""

TUNING = ("htp_performance_mode", "htp_graph_finalization_optimization_mode", "vtcm_mb", "rpc_control_latency")
"""Options of the provider that change how fast a phone runs an artifact, not what it computes: a job's `provider.KEY`, here as there."""


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`build.json`: what the artifact was built for, and with what."""

    arch: int
    soc_model: int
    soc: str
    provider: str
    runtime: str
    sdk: str = ""


def device_libraries(arch: int) -> tuple[str, ...]:
    """What a phone of this Hexagon generation needs beside the runtime, all of the SDK version that `Build.sdk` names.

    The stub runs on the Arm cores, the skeleton on the DSP: it must lie where `ADSP_LIBRARY_PATH` points.
    """
    return ("libQnnHtp.so", "libQnnSystem.so", f"libQnnHtpV{arch}Stub.so", f"libQnnHtpV{arch}Skel.so")


def open(job: Job) -> Runtime:
    """Import the runtime. Raises `RunnerError` (stage `library`) when it is absent."""
    check_options(job, ("hexagon_arch", *(f"provider.{key}" for key in TUNING)))
    try:
        module, qnn = libraries()
    except MissingPackageError as error:
        raise RunnerError(error.message, error.hint, stage="library") from error
    return Runtime(f"{module.__version__}, {qnn.EP_NAME}", lambda artifact: _load(job, artifact))


def libraries() -> tuple[Any, Any]:
    """ONNX Runtime with the provider registered, and the provider's package. Raises `MissingPackageError`."""
    ort = require("onnxruntime", extra="onnx", purpose="running on the HTP simulator")
    qnn = require("onnxruntime_qnn", extra="qnn", purpose="running on the HTP simulator")
    if not any(device.ep_name == PROVIDER for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(PROVIDER, qnn.get_library_path())
    return ort, qnn


@functools.cache
def sdk_version() -> str:
    """The version of Qualcomm's SDK that the provider's libraries are of, as they say themselves; empty where they do not."""
    _, qnn = libraries()
    found = re.search(rb"\0v(\d+\.\d+\.\d+)\.\d{12}", Path(qnn.get_qnn_htp_path()).read_bytes())
    return found[1].decode() if found else ""


def session(model: Path, arch: int, soc_model: int = 0, context: Path | None = None, tuning: Mapping[str, str] | None = None) -> Any:
    """A session in which every node runs on the HTP; with `context` also the context binary is written there. `tuning` are provider options.

    Raises `RunnerError` (stage `prepare`) when an operator is refused or the graph cannot be finalized.
    """
    entries = {"session.disable_cpu_ep_fallback": "1", "session.record_ep_graph_assignment_info": "1"}
    if context:
        entries |= {"ep.context_enable": "1", "ep.context_embed_mode": "1", "ep.context_file_path": str(context)}
    return _session(model, arch, soc_model, entries, tuning or {})


def left_over(model: Path, arch: int, soc_model: int = 0) -> tuple[tuple[str, str], ...]:
    """Type and name of the operators that the provider leaves to the CPU where that is allowed; empty when it cannot be told."""
    try:
        made = _session(model, arch, soc_model, {"session.record_ep_graph_assignment_info": "1"}, {})
    except RunnerError:
        return ()
    parts = [part for part in made.get_provider_graph_assignment_info() if part.ep_name != PROVIDER]
    return tuple((node.op_type, node.name) for part in parts for node in part.get_nodes())


def _session(model: Path, arch: int, soc_model: int, entries: Mapping[str, str], tuning: Mapping[str, str]) -> Any:
    ort, qnn = libraries()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    settings = {"backend_path": qnn.get_qnn_htp_path(), "htp_arch": str(arch), "offload_graph_io_quantization": "0"}
    settings |= {**tuning, **({"soc_model": str(soc_model)} if soc_model else {})}
    device = next(d for d in ort.get_ep_devices() if d.ep_name == PROVIDER)
    options.add_provider_for_devices([device], settings)
    try:
        made = ort.InferenceSession(str(model), options)
    except Exception as error:  # the bindings raise a class of their own per status
        raise RunnerError(explain(str(error)), stage="prepare") from error
    made.disable_fallback()  # the bindings answer a failing run with a session on the CPU, which hides the failure
    return made


def explain(text: str) -> str:
    """An error text with what its QNN code means, or without what tells a user nothing, as a file that is gone by now."""
    text = re.sub(r"Load model from .*? failed:\s*", "", text)
    code = next((code for code in CODES if re.search(rf"(?<!\d){code}(?!\d)", text)), None)
    if code:
        return f"{CODES[code]} (QNN {code}): {text[:300]}"
    turned = re.search(r"OpType:(\w+) with domain:\S+ was inserted using the NHWC format", text)
    if turned:
        return f"{turned[1]}, which the provider turned channels-last, is not taken in this form"
    return next((sentence for known, sentence in SENTENCES.items() if known in text), first_line(RuntimeError(text), 300))


def _load(job: Job, artifact: Path) -> Executable:
    build = msgspec.json.decode((artifact / "build.json").read_bytes(), type=Build)
    asked = job.options.get("hexagon_arch", "")
    if asked and asked != str(build.arch):
        raise RunnerError(f"the artifact was built for Hexagon v{build.arch}, and this device is v{asked}", stage="model")
    tuning = {key: job.options[f"provider.{key}"] for key in TUNING if f"provider.{key}" in job.options}
    return _Loaded(bound(job, session(artifact / "model.onnx", build.arch, build.soc_model, tuning=tuning)))


class _Loaded(Bound):
    def __init__(self, found: Bound) -> None:
        super().__init__(found.session, found.input_names, found.output_names)

    def delegation(self) -> Delegation | None:
        """What the provider says it took; nothing may be left, as fallback is disabled."""
        found = assignment(self.session, "qnn")
        return found and msgspec.structs.replace(found, delegate="hexagon")
