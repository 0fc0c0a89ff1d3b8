"""LiteRT on this machine, through the interpreter of ai-edge-litert.

Accelerators: `xnnpack`, and `cpu` for the runtime's own kernels (option `kernels`: `optimized` or `reference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from edgekit.errors import MissingPackageError, RunnerError, require
from edgekit.hostruntimes import Executable, Runtime, check_options, choice, match
from edgekit.job import Delegation, Job
from edgekit.tensors import Array, TensorSpec

_PREPARE_WORDS = ("op", "registration", "resolve", "delegate")


def open(job: Job) -> Runtime:
    """Import the interpreter. Raises `RunnerError`: stage `library` when absent, `prepare` for an accelerator or option it does not have."""
    try:
        require("ai_edge_litert.interpreter", extra="litert", purpose="running a LiteRT model")
    except MissingPackageError as error:
        raise RunnerError(error.message, error.hint, stage="library") from error
    if job.accelerator not in ("cpu", "xnnpack"):
        raise RunnerError(f"the runtime litert has no accelerator {job.accelerator!r} here; it has cpu and xnnpack", stage="prepare")
    check_options(job, ("kernels",) if job.accelerator == "cpu" else ())
    choice(job, "kernels", ("optimized", "reference"), "optimized")
    return Runtime(metadata.version("ai-edge-litert"), lambda artifact: _load(job, artifact))


def _load(job: Job, artifact: Path) -> Executable:
    interpreter = _interpreter(job, artifact)
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    wanted = tuple(file.spec for file in job.samples[0])
    chosen_inputs = [inputs[i] for i in match(job, "input", wanted, [_spec(x) for x in inputs], _names(interpreter, inputs, "inputs"))]
    chosen_outputs = [outputs[i] for i in match(job, "output", job.outputs, [_spec(x) for x in outputs], _names(interpreter, outputs, "outputs"))]
    for spec, detail in zip(wanted, chosen_inputs, strict=True):
        if tuple(detail["shape"]) != spec.shape:
            interpreter.resize_tensor_input(detail["index"], spec.shape, strict=True)
    try:
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise RunnerError(f"tensors could not be allocated: {error}", stage="prepare") from error
    return _Loaded(job, interpreter, [x["index"] for x in chosen_inputs], [x["index"] for x in chosen_outputs])


class _Loaded:
    def __init__(self, job: Job, interpreter: Any, inputs: list[int], outputs: list[int]) -> None:
        self._job, self._interpreter, self._inputs, self._outputs = job, interpreter, inputs, outputs
        self.invoke = interpreter.invoke

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        for index, array in zip(self._inputs, arrays, strict=True):
            self._interpreter.set_tensor(index, array)

    def outputs(self) -> Sequence[Array]:
        return [self._interpreter.get_tensor(index) for index in self._outputs]

    def delegation(self) -> Delegation | None:
        return _delegation(self._interpreter._get_ops_details(), self._job.accelerator)

    def counters(self) -> dict[str, int]:
        return {}


def _interpreter(job: Job, artifact: Path) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kinds = OpResolverType
    own = kinds.BUILTIN_REF if job.options.get("kernels") == "reference" else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        return Interpreter(
            str(artifact),
            num_threads=job.threads,
            experimental_op_resolver_type=kinds.BUILTIN if job.accelerator == "xnnpack" else own,
        )
    except (RuntimeError, ValueError) as error:
        words = str(error).lower().replace("\n", " ").split(" ")
        raise RunnerError(f"{artifact.name}: {error}", stage="prepare" if set(words) & set(_PREPARE_WORDS) else "model") from error


def _spec(detail: dict[str, Any]) -> TensorSpec:
    import numpy as np

    return TensorSpec(detail["name"], tuple(int(x) for x in detail["shape_signature"]), np.dtype(detail["dtype"]).name)


def _names(interpreter: Any, details: Sequence[dict[str, Any]], side: str) -> list[list[str]]:
    """Signature names of the main graph's tensors, one list a signature, then the tensors' own names."""
    lists = []
    for key in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(key)
        named = runner.get_input_details() if side == "inputs" else runner.get_output_details()
        by_tensor = {(x["index"], x["name"]): name for name, x in reversed(named.items())}
        lists.append([by_tensor.get((x["index"], x["name"]), "") for x in details])
    return [*lists, [x["name"] for x in details]]


def _delegation(nodes: Sequence[dict[str, Any]], accelerator: str) -> Delegation | None:
    """Which operators the delegate's nodes replaced. The interpreter still lists those, with the DELEGATE nodes behind them."""
    operators = [_Operator(node["op_name"], node["inputs"].tolist(), node["outputs"].tolist()) for node in nodes if node["op_name"] != "DELEGATE"]
    parts = [(node["inputs"].tolist(), node["outputs"].tolist()) for node in nodes if node["op_name"] == "DELEGATE"]
    taken = _replaced(operators, {x for part in parts for x in part[0]}, {x for part in parts for x in part[1]})
    kinds = [tuple(sorted({op.kind for i, op in enumerate(operators) if (i in taken) is wanted})) for wanted in (True, False)]
    return Delegation("xnnpack" if accelerator == "xnnpack" else "", len(taken), len(operators), len(parts), *kinds)


class _Operator(NamedTuple):
    kind: str
    inputs: list[int]
    outputs: list[int]


def _replaced(operators: Sequence[_Operator], given: set[int], made: set[int]) -> set[int]:
    """Operators inside parts that take the tensors `given` and make `made`.

    Inside is what makes `made`, what makes an inner tensor, and what uses an inner tensor: those exist nowhere outside.
    """
    taken: set[int] = set()
    needed, inner = set(made), set[int]()
    while True:
        found = {i for i, op in enumerate(operators) if needed & set(op.outputs) or inner & set(op.inputs)} - taken
        if not found:
            return taken
        taken |= found
        inner |= {x for i in found for x in operators[i].outputs} - made
        needed |= {x for i in found for x in operators[i].inputs} - given
