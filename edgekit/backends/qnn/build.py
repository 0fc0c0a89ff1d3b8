"""From a float ONNX model to an artifact folder: `model.onnx` (QDQ or float), `context.onnx` (the binary for the chip), `build.json`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from edgekit import budget
from edgekit.backends import Artifact, Candidate, Context
from edgekit.backends.qnn import locate, mixed, prices
from edgekit.errors import ConversionError, RunnerError, UsageError, close_match
from edgekit.formats import Model, _onnx_view
from edgekit.hostruntimes import onnxruntime_qnn
from edgekit.hostruntimes.onnxruntime_qnn import Build
from edgekit.legalize import onnx_prepare, onnx_rules, onnx_windows
from edgekit.opset import hexagon, table, view
from edgekit.qdq import edges, fold, protos, sensitivity, stream, write
from edgekit.qdq.source import Source
from edgekit.quantize import half_range, ranges
from edgekit.tensors import Arrays, Signature, TensorSpec

ARCHS = (68, 69, 73, 75, 79, 81)
"""Generations that onnxruntime-qnn 2.7.0 accepts (measured); for any other it only warns, and builds for a default."""

HALVES_FROM = 69
"""The first generation that computes in half precision."""

BLOCKS_FROM = 73
"""The first generation for which 4-bit weights have a scale for each block of inputs: with activations of 16 bits, which the HTP then
multiplies in half precision (the simulator takes neither 8-bit ones nor kernels of more than a pixel)."""

FINE_FROM = 73
"""The first generation that multiplies weights of 16 bits with activations of 16 (the simulator takes none on v68 and v69)."""

HALF_SAMPLES = 4
"""Samples that are searched for values beyond half precision."""

ROWS = 10
"""Activations named as the most costly ones."""


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Do once what all candidates share. Raises `UsageError` for an unknown generation or edge type, `ConversionError` for a quantized model."""
    arch = context.target.options.get("arch")
    if arch not in ARCHS:
        raise UsageError(f"{context.target.name}: unknown Hexagon generation {arch!r}", close_match(str(arch), map(str, ARCHS)))
    found = next((node for node in model.handle.graph.node if node.op_type in protos.QUANTIZING or node.op_type == "DequantizeLinear"), None)
    if found is not None:
        raise ConversionError(f"{model.name} is already quantized: {found.op_type} in layer {found.name or found.output[0]}", "give the float model")
    prepared = onnx_rules.legalize(onnx_prepare.prepare(model), "hexagon", context.calibration)
    _refuse_wrong(model.name, prepared.model.handle, prepared.notices)
    proto, count = fold.folded(protos.canonical(prepared.model.handle))
    notices = (*prepared.notices, *((f"{count} multiplications and additions went into the layers beside them",) if count else ()))
    ends = dict(prepared.inputs), dict(prepared.outputs)
    return _Builder(Source(model, proto, *ends, context.calibration, context.workdir, context.progress), context, notices).build


def _refuse_wrong(name: str, proto: Any, notices: Sequence[str]) -> None:
    """Raise `ConversionError` for operators that the HTP takes and computes otherwise, or lacks where their definition is not the runtime's."""
    graph, known = _onnx_view.graph(proto, 0), table.load("hexagon")
    seen, left = view.make(graph, known), {notice.partition(":")[0]: notice for notice in notices if ": left as it is" in notice}
    for operator in graph.operators:
        reason = hexagon.wrong(seen, operator)
        if reason:
            raise ConversionError(f"{name}: {operator.type} in layer {operator.name}: {reason}", "replace that operator: the HTP would take it")
        if operator.type in left and operator.type not in known.ops:
            raise ConversionError(f"{name}: {known.label} does not have {operator.type} (layer {operator.name}); {left[operator.type]}")


@dataclasses.dataclass(frozen=True)
class _Written:
    """A graph to compile, what was said of it, and what it measured."""

    proto: Any
    candidate: Candidate
    notices: tuple[str, ...] = ()
    sensitivity: tuple[tuple[str, float, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class _Builder:
    source: Source
    context: Context
    notices: tuple[str, ...]

    def build(self, candidate: Candidate) -> Artifact:
        """Write one candidate, and ask the simulator to take it and to make the context binary."""
        if not self.source.samples and candidate.precision != "fp16":
            raise ConversionError(f"{candidate.precision} needs calibration data: its activations have fixed ranges", "give --calibration")
        written = {"fp16": self._half, "mixed": self._mixed}.get(candidate.precision, self._plain)(candidate)
        folder = self.context.workdir / f"{candidate.precision}-{candidate.rounding}" / "hexagon"
        folder.mkdir(parents=True)
        proto, signature, names = self._edges(written)
        self._compile(self.source.with_all_inputs(proto), folder)
        options = self.context.target.options
        versions = metadata.version("onnxruntime-qnn"), metadata.version("onnxruntime")
        built = Build(options["arch"], options.get("soc_model", 0), options.get("soc", ""), *versions, sdk=onnxruntime_qnn.sdk_version())
        (folder / "build.json").write_bytes(msgspec.json.format(msgspec.json.encode(built), indent=1))
        device = budget.model_part(folder / "context.onnx", f"context binary ({candidate.precision})")
        desk = (folder / "model.onnx").stat().st_size
        notices = (*self.notices, *written.notices, *self._gain(folder / "context.onnx"), *_told(built, desk))
        return Artifact(folder, "onnx-qnn", signature, written.candidate, names, notices, written.sensitivity, parts=(device,))

    def _gain(self, context: Path) -> tuple[str, ...]:
        now, before = context.stat().st_size, self.source.proto.ByteSize()
        return (f"the context binary is no smaller than the float model: {now} bytes against {before}",) if now >= before else ()

    def _plain(self, candidate: Candidate) -> _Written:
        activations, bits = (int(part) for part in candidate.precision.removeprefix("a").split("w"))
        by_data = candidate.rounding != "nearest"
        policy, spared = self._policy(activations, search=activations == 16 and by_data)
        source, gained = self.source.leveled(policy) if activations == 8 and by_data else (self.source, ())
        raised = source.raised if bits == 4 and activations == 16 and self.context.target.options["arch"] >= BLOCKS_FROM else None
        made, notices = (raised or source).quantized(candidate.rounding, policy, bits, blocks=raised is not None)
        told = (f"{len(gained)} chains of layers equalized, around {', '.join(gained[:3])}",) if gained else ()
        return _Written(made, candidate, (*notices, *told, *spared))

    def _mixed(self, candidate: Candidate) -> _Written:
        plain, spared = self._policy(8, search=True)
        eight = dataclasses.replace(plain, spans=True)
        source = self.source if candidate.rounding == "nearest" else self.source.leveled(eight)[0]
        costs, weights, sums = *self._costs(source, eight), mixed.sums(source.proto) - eight.real

        def policy(names: frozenset[str]) -> write.Policy:
            fine = names.intersection(weights)
            return dataclasses.replace(eight, wide=eight.wide | sums | names - fine, narrow=sums - names, fine=fine)

        def size_of(policy: write.Policy) -> float:
            return self._context_bytes(source.quantized("nearest", policy)[0])

        @functools.cache
        def built(names: frozenset[str]) -> tuple[Any, tuple[str, ...]]:
            return source.quantized(candidate.rounding, policy(names))

        eight_bytes = size_of(eight)
        chosen = mixed.choose(costs | weights, lambda names: size_of(policy(names)), eight_bytes)
        weighed = candidate.rounding == "nearest"  # that very graph
        names = mixed.fitting(chosen, lambda names: weighed or self._context_bytes(built(names)[0]) <= mixed.most_bytes(eight_bytes))
        made, notices = built(names)
        many, fine = sum(name in names for name in costs), sum(name in names for name in weights)
        told = f"{many} of {len(costs)} activations in 16 bits, those whose 8 bits cost the outputs most, and {len(sums - names)} sums beside layers"
        more = (f"{fine} weights in 16 bits, of layers that compute in them",) if fine else ()
        made_of = msgspec.structs.replace(candidate, wide=tuple(sorted(policy(names).wide)), keep_float=tuple(sorted(eight.real)))
        return _Written(made, made_of, (*notices, told, *more, *spared), _worst(costs | weights, names))

    def _costs(self, source: Source, policy: write.Policy) -> tuple[dict[str, sensitivity.Cost], dict[str, sensitivity.Cost]]:
        """What 8 bits cost in activations, and in the weights of convolutions where 16 may be stored."""
        wide, fine = prices.prices(source.proto, source.samples[0], source.seen, self.context.workdir, self._context_bytes)
        able = self.context.target.options["arch"] >= FINE_FROM
        weights = sensitivity.measure_weights(source.proto, source.samples, fine, source.progress) if able else {}
        return source.costs(policy, wide), weights

    def _policy(self, bits: int, *, search: bool) -> tuple[write.Policy, tuple[str, ...]]:
        """Activations of `bits`, but for joins of unlike ranges; with `search` also but for those that 16 bits do not hold (powers, variances).

        They get halves where the chip has them, and 16 bits where not. Notices name them.
        """
        source, by = self.source, ranges.method(self.context.ranges)
        joined, told = source.joined
        if self.context.target.options["arch"] < HALVES_FROM:
            return write.Policy(bits, by, wide=joined, spans=bits == 16), told
        costs = source.costs(write.Policy(16, by, real=joined, spans=True)) if search else {}
        loud = sensitivity.loud(costs, 16)
        run = stream.taps(source.proto, sorted(loud))
        loud -= {hazard.name for hazard in half_range.hazards(run(sample) for sample in source.samples[:HALF_SAMPLES])} if loud else set()
        named = sorted((name for name in costs if name in loud), key=lambda name: (-costs[name].noise, name))
        halves = f"{len(named)} activations in half precision, which 16-bit integers do not hold: {', '.join(named[:3])}"
        return write.Policy(bits, by, real=joined | loud, spans=bits == 16), (*told, *((halves,) if named else ()))

    def _half(self, candidate: Candidate) -> _Written:
        """The float graph, which the HTP computes in half precision; refused where values leave its range."""
        source = self.source
        drawn = source.samples or [onnx_prepare.random_inputs(Signature(source.specs, ()), seed) for seed in range(2)]
        run = stream.taps(source.proto, stream.activations(source.proto))
        found = half_range.hazards(run(sample) for sample in drawn[:HALF_SAMPLES])
        makers = {name: node for node in source.proto.graph.node for name in node.output}
        broken = [h for h in found if h.name in makers]
        if broken:
            named = "; ".join(f"{makers[h.name].op_type}: {h}" for h in broken[:3])
            raise ConversionError(f"{source.model.name} leaves the range of half precision: {named}", "a16w8 has a range of its own for every tensor")
        proto, told = _for_half(source.proto, drawn)
        return _Written(proto, candidate, (*told, "float32 outside, half precision inside: the HTP has no float32"))

    def _edges(self, written: _Written) -> tuple[Any, Signature, dict[str, str]]:
        """The graph with the edges asked for, their specs, and how the runtime calls them."""
        source = self.source
        if self.context.io == "float32" or written.candidate.precision == "fp16":
            return written.proto, source.model.signature, source.renamed
        proto, moved = edges.integers(written.proto)

        def spec(was: TensorSpec) -> TensorSpec:
            now = moved.get(source.renamed.get(was.name, was.name))
            return was if now is None else msgspec.structs.replace(was, dtype=now.dtype, scale=now.scale, zero_point=now.zero_point)

        signature = Signature(tuple(map(spec, source.model.signature.inputs)), tuple(map(spec, source.model.signature.outputs)))
        names = {**source.inputs, **source.outputs}
        known = {was: moved[now].name if now in moved else now for was, now in names.items()}
        return proto, signature, {was: now for was, now in known.items() if was != now}

    def _context_bytes(self, proto: Any) -> float:
        """Of the binary that the graph becomes; infinite where the HTP refuses it."""
        folder = self.context.workdir / "trial"
        folder.mkdir(exist_ok=True)
        try:
            self._binary(proto, folder)
        except RunnerError:
            return math.inf
        return (folder / "context.onnx").stat().st_size

    def _compile(self, proto: Any, folder: Path) -> None:
        """Write `model.onnx` and `context.onnx`. Raises `ConversionError` that names the operators which the HTP refuses."""
        try:
            self._binary(proto, folder)
        except RunnerError as error:
            options = self.context.target.options
            left = locate.not_taken(proto, error, folder / "model.onnx", options["arch"], options.get("soc_model", 0))
            hint = "write what it does in other operators, or keep that part of the model outside the artifact"
            raise ConversionError(f"the HTP simulator does not take {left}", hint) from error

    def _binary(self, proto: Any, folder: Path) -> None:
        """Write both files, or raise what the provider says."""
        options = self.context.target.options
        (folder / "model.onnx").write_bytes(proto.SerializeToString(deterministic=True))
        (folder / "context.onnx").unlink(missing_ok=True)
        onnxruntime_qnn.session(folder / "model.onnx", options["arch"], options.get("soc_model", 0), folder / "context.onnx")


def _for_half(proto: Any, samples: Sequence[Arrays]) -> tuple[Any, tuple[str, ...]]:
    """The graph in forms that the HTP computes rightly in half precision, and which were rewritten. Raises `ConversionError` where one differs."""
    told: list[str] = []
    for rule in onnx_windows.HALF_RULES:
        made, count = onnx_rules.apply(rule, proto)
        if count and sensitivity.noise_of(proto, made, samples) > onnx_rules.TOLERANCE**2:
            raise ConversionError(f"{rule.name}: the HTP computes {rule.removes[0]} otherwise in half precision, and the other form is not equal")
        if count:
            proto, told = protos.canonical(made), [*told, f"{rule.name}: {count} x: in half precision the HTP computes the other form only"]
    return proto, tuple(told)


def _told(built: Build, desk_bytes: int) -> tuple[str, ...]:
    return (
        f"context binary for {built.soc or 'any chip'}, Hexagon v{built.arch}, onnxruntime-qnn {built.provider}, QNN SDK {built.sdk}",
        f"a phone needs {', '.join(onnxruntime_qnn.device_libraries(built.arch))} of QNN SDK {built.sdk}, which are not in the total",
        f"a phone loads the context binary alone; model.onnx ({desk_bytes} bytes) stays at the desk, where the simulator runs it",
        "the simulator proves values: not the chip's generation, and not latency",
    )


def _worst(costs: dict[str, sensitivity.Cost], wide: frozenset[str]) -> tuple[tuple[str, float, str], ...]:
    """The activations that cost most: by how much the error of the outputs would fall without them, were all in 8 bits."""
    total = sum(cost.noise for cost in costs.values())
    rows = sorted(costs.items(), key=lambda row: (-row[1].noise, row[0]))[:ROWS]
    shown = [(name, -10 * math.log10(max(1 - cost.noise / total, 1e-6)), name in wide) for name, cost in rows if cost.noise]
    return tuple((name, round(gain, 2), "8 bits here" + (": it has 16" if kept else "")) for name, gain, kept in shown)
