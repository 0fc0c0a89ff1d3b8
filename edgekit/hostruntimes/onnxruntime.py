"""ONNX Runtime on this machine.

Accelerators: `cpu`, or a provider of the installed build (`xnnpack`, `coreml`, `qnn` ...). Options as in `apps/CONTRACT.md`, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekit.errors import MissingPackageError, RunnerError, require
from edgekit.hostruntimes import Executable, Runtime, check_options, choice, match
from edgekit.job import Delegation, Job
from edgekit.tensors import Array, TensorSpec

PROVIDERS = {"cpu": "CPU", "xnnpack": "Xnnpack", "coreml": "CoreML", "qnn": "QNN", "nnapi": "Nnapi", "vitisai": "VitisAI", "openvino": "OpenVINO"}

_DTYPES = {"float": "float32", "double": "float64"}
_LEVELS = {"disabled": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}
_UNREADABLE = ("NoSuchFile", "NoModel", "InvalidProtobuf", "InvalidGraph")


def open(job: Job) -> Runtime:
    """Import ONNX Runtime. Raises `RunnerError`: stage `library` when absent, `prepare` for an accelerator or option it does not have."""
    try:
        ort = require("onnxruntime", extra="onnx", purpose="running an ONNX model")
    except MissingPackageError as error:
        raise RunnerError(error.message, error.hint, stage="library") from error
    provider = _provider(job.accelerator)
    if provider not in ort.get_available_providers():
        raise RunnerError(f"the accelerator {job.accelerator!r}: this ONNX Runtime has {', '.join(ort.get_available_providers())}", stage="prepare")
    check_options(job, ("graph_optimization", "fallback"), ("session.",) if job.accelerator == "cpu" else ("session.", "provider."))
    choice(job, "graph_optimization", tuple(_LEVELS), "all")
    choice(job, "fallback", ("allow", "refuse"), "allow")
    return Runtime(ort.__version__, lambda artifact: _load(job, artifact))


def _provider(accelerator: str) -> str:
    return f"{PROVIDERS.get(accelerator, accelerator)}ExecutionProvider"


def session(job: Job, artifact: Path, **entries: str) -> Any:
    """A session as the job wants it, with further configuration `entries`. Raises `RunnerError` (stages `model`, `prepare`)."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, _LEVELS[job.options.get("graph_optimization", "all")])
    if job.options.get("fallback") == "refuse":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for key, value in {**_prefixed(job, "session."), **entries}.items():
        options.add_session_config_entry(key, value)
    providers = [(_provider(job.accelerator), _prefixed(job, "provider."))] if job.accelerator != "cpu" else ["CPUExecutionProvider"]
    try:
        return ort.InferenceSession(str(artifact), options, providers=providers)
    except Exception as error:  # the bindings raise a class of their own per status
        unreadable = type(error).__name__ in _UNREADABLE or "Load model from" in str(error)
        raise RunnerError(str(error), stage="model" if unreadable else "prepare") from error


def _prefixed(job: Job, prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in job.options.items() if key.startswith(prefix)}


def _load(job: Job, artifact: Path) -> Executable:
    return _Loaded(bound(job, session(job, artifact)), job, artifact)


class Bound:
    """A session whose tensors are matched with the job's."""

    def __init__(self, made: Any, inputs: list[str], outputs: list[str]) -> None:
        self.session, self.input_names, self.output_names = made, inputs, outputs
        self._feed: dict[str, Array] = {}
        self._values: Sequence[Array] = ()

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        """Put inputs in place."""
        self._feed = dict(zip(self.input_names, arrays, strict=True))

    def invoke(self) -> None:
        """Compute."""
        self._values = self.session.run(self.output_names, self._feed)

    def outputs(self) -> Sequence[Array]:
        """The outputs of the last invocation."""
        return self._values

    def counters(self) -> dict[str, int]:
        """None."""
        return {}


def bound(job: Job, made: Any) -> Bound:
    """Match a session's tensors with the job's. Raises `RunnerError` (stages `prepare`, `input`)."""
    inputs, outputs = made.get_inputs(), made.get_outputs()
    wanted = tuple(file.spec for file in job.samples[0])
    chosen_inputs = [inputs[i].name for i in match(job, "input", wanted, [_spec(x) for x in inputs], [[x.name for x in inputs]])]
    chosen_outputs = [outputs[i].name for i in match(job, "output", job.outputs, [_spec(x) for x in outputs], [[x.name for x in outputs]])]
    return Bound(made, chosen_inputs, chosen_outputs)


class _Loaded(Bound):
    def __init__(self, found: Bound, job: Job, artifact: Path) -> None:
        super().__init__(found.session, found.input_names, found.output_names)
        self._job, self._artifact = job, artifact

    def delegation(self) -> Delegation | None:
        """What the provider took."""
        return assignment(session(self._job, self._artifact, **{"session.record_ep_graph_assignment_info": "1"}), self._job.accelerator)


def assignment(made: Any, accelerator: str) -> Delegation | None:
    """What each provider took, of a session made with `session.record_ep_graph_assignment_info`. None before ONNX Runtime 1.24."""
    if not hasattr(made, "get_provider_graph_assignment_info"):
        return None
    taken: list[str] = []
    left: list[str] = []
    partitions = 0
    for part in made.get_provider_graph_assignment_info():
        is_taken = accelerator != "cpu" and part.ep_name == _provider(accelerator)
        partitions += is_taken
        (taken if is_taken else left).extend(node.op_type for node in part.get_nodes())
    total = len(taken) + len(left)
    kinds = tuple(sorted(set(taken))), tuple(sorted(set(left)))
    return Delegation("" if accelerator == "cpu" else accelerator, len(taken), total, partitions, *kinds) if total else None


def _spec(value: Any) -> TensorSpec:
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    return TensorSpec(value.name, tuple(x if isinstance(x, int) else -1 for x in value.shape), _DTYPES.get(kind, kind))
