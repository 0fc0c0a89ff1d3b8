"""From a float32 ML Program and a candidate to a package: the order of the steps."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit import formats
from edgekit.backends import Artifact, Candidate, Context
from edgekit.backends.coreml import activations, flexible, halfrange, images, program, rounding, sensitivity, stream
from edgekit.backends.coreml.halfrange import Legal
from edgekit.backends.coreml.layers import RECURRENT
from edgekit.backends.coreml.rounding import Recipe, Stored
from edgekit.backends.coreml.sensitivity import Cost
from edgekit.errors import ConversionError
from edgekit.formats import Model, Session, mlprogram, mlprogram_write
from edgekit.graph import Graph
from edgekit.quantize import ranges
from edgekit.quantize.grid import Affine
from edgekit.quantize.layer import in_parts_told
from edgekit.quantize.moments import DENSE
from edgekit.tensors import quantize
from edgekit.virtual.coreml.hazards import Hazard
from edgekit.virtual.coreml.plan import Plan
from edgekit.virtual.coreml.plan import prepare as prepared
from edgekit.virtual.coreml.session import Session as Interpreted
from edgekit.virtual.coreml.shapes import resolved
from edgekit.virtual.coreml.spec import Operation

LOOKED_AT = 4
"""Samples on which values are watched for leaving half precision's range."""
TRIES = 3

RECIPES = {
    "fp16": Recipe(16),
    "w8": Recipe(8),
    "w8a8": Recipe(8),
    "p8": Recipe(8, table=True),
    "p6": Recipe(6, table=True),
    "p4": Recipe(4, table=True),
    "w4": Recipe(4, grouped=True),
    "s50": Recipe(16, sparsity=0.5),
    "s75": Recipe(16, sparsity=0.75),
    "s50-w8": Recipe(8, sparsity=0.5),
    "s50-p6": Recipe(6, table=True, sparsity=0.5),
}
TABLES = frozenset(("constexpr_lut_to_dense", "constexpr_lut_to_sparse"))
PLAIN = frozenset(("constexpr_cast", "constexpr_sparse_to_dense"))
"""Weights behind these have as many digits as they say: pruned ones, and halves that become single."""
WHOLE = frozenset(("w8",))
"""Precisions, by how their names begin, whose layers all have 8-bit steps."""
GROUPED_SINCE = "iOS18"
"""From here on a layer may have a table for each group of its outputs."""


def prepare(model: Model, context: Context) -> Callable[[Candidate], Artifact]:
    """Read the program once; the result builds one candidate a call. Raises `ConversionError` for what a package cannot be given."""
    if context.io not in ("float32", "image"):
        raise ConversionError(f"Core ML packages have float32 or image edges, not {context.io}", "leave out --io")
    own = own_precision(model)
    if own is not None and context.others:
        raise ConversionError(f"{model.name} is already {own}: its shapes stay what they are", "give the float32 package")
    if own is not None and context.io == "image":
        raise ConversionError(f"{model.name} is already {own}: its inputs stay what they are", "give the float32 package, or leave out --io")
    if context.io == "image":
        model = images.with_image(model, context)
    if own is not None:
        return lambda candidate: _as_given(model, context, own, candidate)
    return _Source(model, context).build


def own_precision(model: Model) -> str | None:
    """The precision of a package that is no longer float32, None for a float32 one. Of pruned weights it names how the others are stored."""
    operations = mlprogram.package_of(model).program.block.operations
    types = {operation.type for operation in operations}
    if "quantize" in types:
        return "w8a8"
    tables = [_table_bits(operation, operations) for operation in operations if operation.type in TABLES]
    if tables:
        return f"p{min(tables)}"
    if any(kind.startswith("constexpr_") and kind not in PLAIN for kind in types):
        return "w8"
    halves = any(output.type.dtype == "float16" for operation in operations if operation.type != "const" for output in operation.outputs)
    return "fp16" if halves else None


def _table_bits(operation: Operation, operations: Sequence[Operation]) -> int:
    """Bits of an index: the table is [entries] (iOS 16) or [..., entries, vector] (iOS 18)."""
    types = {made.outputs[0].name: made.outputs[0].type for made in operations if made.type == "const"}
    bound = operation.attributes["lut"] if "lut" in operation.attributes else operation.inputs["lut"][0]
    shape = (types[bound] if isinstance(bound, str) else bound.type).shape
    return (shape[0] if len(shape) == 1 else shape[-2]).bit_length() - 1


@dataclasses.dataclass(frozen=True, eq=False)
class _Source:
    model: Model
    context: Context

    @property
    def deployment(self) -> str:
        """The oldest system that the package must run on."""
        return str(self.context.target.options.get("deployment", "iOS16"))

    @property
    def grouped(self) -> bool:
        """Whether that system takes several tables a layer."""
        return self.deployment >= GROUPED_SINCE

    @property
    def folder(self) -> Path:
        """The float32 package."""
        assert self.model.path is not None
        return self.model.path

    @functools.cached_property
    def plan(self) -> Plan:
        """The float32 program, ready to run."""
        return prepared(mlprogram.package_of(self.model))

    @functools.cached_property
    def samples(self) -> list[Mapping[str, Any]]:
        """Calibration sets as the program takes them."""
        ready, names = Interpreted(mlprogram.package_of(self.model)), mlprogram.feature_names(self.model)
        kinds = {spec.name: spec for spec in self.model.signature.inputs}
        rows = [ready.tensors({names[n]: quantize(a, kinds[n]) for n, a in sample.items()}) for sample in self.context.calibration]
        return stream.fitting(self.plan, rows)

    @functools.cached_property
    def legal(self) -> Legal:
        """The float program made ready for half precision."""
        return halfrange.prepare(mlprogram.package_of(self.model), self.plan, self.samples[:LOOKED_AT])

    def build(self, candidate: Candidate) -> Artifact:
        """One package."""
        if candidate.precision == "fp32":
            return self.finish(candidate, program.single(self.folder, self.deployment), ())
        if candidate.precision not in RECIPES:
            raise ConversionError(f"Core ML packages have no precision {candidate.precision!r}")
        kept, told = frozenset(candidate.keep_float) | self.legal.kept, self.legal.notices
        for _ in range(TRIES):
            artifact = self.rounded(candidate, kept, told)
            found = self.broken(artifact)
            if not found:
                return artifact
            kept |= halfrange.around(self.legal.plan, found)
            told += tuple(f"{item.text}: computed in single precision instead" for item in found[:1])
        raise ConversionError(f"{self.model.name} does not survive half precision: {found[0].text}", "choose --precision fp32")

    def rounded(self, candidate: Candidate, kept: frozenset[str], told: tuple[str, ...]) -> Artifact:
        """One package that computes in half precision, but for the operators `kept`."""
        recipe = RECIPES[candidate.precision]
        recipe = dataclasses.replace(recipe, method=candidate.rounding, kept=kept, grouped=recipe.grouped or (recipe.table and self.grouped))
        grids, costs = self.grids(kept) if candidate.precision == "w8a8" else ({}, {})
        stored, method = rounding.round_program(self.legal.plan, self.samples, recipe, grids, self.context.progress)
        made = halves = program.half(self.folder, self.deployment, stored, self.legal.changed, kept)
        if any(not item.half or item.layer.kind in RECURRENT for item in stored) or grids:
            read = {item.layer.layer: grids[item.layer.input] for item in stored if item.layer.input in grids}
            made = program.compressed(made, self.deployment, stored, read)
        spared = costs.keys() - grids.keys()
        artifact = self.finish(candidate, made, (*told, *sensitivity.notice(costs, spared), *_notices(stored, candidate, method)))
        artifact = dataclasses.replace(artifact, sensitivity=sensitivity.rows(costs, spared))
        saved = mlprogram_write.size_bytes(halves) - mlprogram_write.size_bytes(made)
        return artifact if saved > 0 or candidate.precision == "fp16" else _not_smaller(artifact, saved)

    def stored(self, other: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Another shape as the package knows it, by its own names; images are [1, channels, height, width] there."""
        names, planar = mlprogram.feature_names(self.model), {spec.name for spec in self.model.signature.inputs if spec.pixels}
        last = {spec.name for spec in self.model.signature.inputs if spec.pixels and spec.pixels.layout == "NHWC"}
        return {names[n]: (s[0], s[3], *s[1:3]) if n in planar & last else s for n, s in other.items()}

    def broken(self, artifact: Artifact) -> tuple[Hazard, ...]:
        """Results that are no longer finite on the samples."""
        package = mlprogram.package_of(_opened(artifact.path))
        samples = [{name: value.numpy() for name, value in sample.items()} for sample in self.samples[:LOOKED_AT]]
        return halfrange.broken(package, samples, self.legal.infinite)

    def grids(self, kept: frozenset[str]) -> tuple[dict[str, Affine], dict[str, Cost]]:
        """8-bit grids of what the layers read, but of what is too dear in 8 bits; and what each costs."""
        if not self.samples:
            raise ConversionError("w8a8 needs calibration data: its activations have fixed ranges", "give --calibration, or choose w8")
        every = activations.grids(self.plan, self.samples, ranges.method(self.context.ranges))
        costs = sensitivity.measure(self.legal.plan, self.samples, every, kept, self.context.progress)
        spared = sensitivity.too_dear(costs)
        return {name: every[name] for name in costs if name not in spared}, costs

    def finish(self, candidate: Candidate, made: Any, notices: tuple[str, ...]) -> Artifact:
        names = mlprogram.feature_names(self.model)
        folder = self.context.workdir / f"{mlprogram_write.identifier(self.model.name)}-{candidate.precision}.mlpackage"
        shutil.rmtree(folder, ignore_errors=True)
        specs = self.model.signature
        path = mlprogram_write.save(made, folder, [names[s.name] for s in specs.inputs], [names[s.name] for s in specs.outputs])
        if self.context.others:
            flexible.enumerated(path, [self.stored(other) for other in self.context.others], self.deployment)
        return _artifact(self.model, path, candidate, notices)


def _notices(stored: list[Stored], candidate: Candidate, method: str) -> tuple[str, ...]:
    nearest = "weights are rounded to nearest: rounding by data was worse on held-out samples"
    plain: tuple[str, ...] = (nearest,) if method != candidate.rounding else ()
    stored = [item for item in stored if item.bias is not None]
    if method == "second-order" and (wide := sum(item.weight.size > DENSE * item.weight.shape[item.layer.axis] for item in stored)):
        plain += (in_parts_told(wide, len(stored)),)
    if candidate.precision == "fp16":
        return plain
    small, pruned = sum(item.half for item in stored), [item for item in stored if item.mask is not None]
    few = sum(item.scales is not None and item.mask is None and item.bits == 8 for item in stored) if candidate.precision[:2] not in WHOLE else 0
    told = [f"{small} of {len(stored)} layers have few weights, which stay in half precision"] if small else []
    told += [f"{few} of {len(stored)} layers read few inputs: their weights have 8-bit steps"] if few else []
    if pruned:
        zero = 1 - sum(item.mask.sum() for item in pruned if item.mask is not None) / sum(item.weight.size for item in pruned)
        told.append(f"{zero:.0%} of the weights of {len(pruned)} of {len(stored)} layers became zero")
    return (*plain, *told)


def _not_smaller(artifact: Artifact, saved_bytes: int) -> Artifact:
    """The same with a notice that half precision, `saved_bytes` (0 or less) beside it, is no larger."""
    size = sum(path.stat().st_size for path in artifact.path.rglob("*") if path.is_file())
    told = f"{artifact.candidate.precision} takes {size} bytes and fp16 {size + saved_bytes}: there is too little to compress, use --precision fp16"
    return dataclasses.replace(artifact, notices=(*artifact.notices, told))


def _as_given(model: Model, context: Context, own: str, candidate: Candidate) -> Artifact:
    if candidate.precision != own:
        hint = f"use --precision {own}, or give the float32 package"
        raise ConversionError(f"{model.name} is already {own} and cannot become {candidate.precision}", hint)
    assert model.path is not None
    folder = context.workdir / f"{mlprogram_write.identifier(model.name)}-{own}.mlpackage"
    shutil.copytree(model.path, folder)
    return _artifact(model, folder, candidate, (f"the package is already {own}: its program and weights are kept",))


def _artifact(model: Model, path: Path, candidate: Candidate, notices: tuple[str, ...]) -> Artifact:
    made = formats.module("mlprogram").open(str(path), {})
    ends = zip((*model.signature.inputs, *model.signature.outputs), (*made.signature.inputs, *made.signature.outputs), strict=True)
    names = {was.name: now.name for was, now in ends if was.name != now.name}
    return Artifact(path, "mlprogram", model.signature, candidate, names, notices)


def _opened(path: Path) -> Model:
    """The package at `path`, read once while it stays as it is."""
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed_ns: int) -> Model:
    del changed_ns
    opened: Model = formats.module("mlprogram").open(str(path), {})
    return opened


def emulate(artifact: Artifact) -> Session:
    """The package in the interpreter, under the source's names."""
    opened = dataclasses.replace(_opened(artifact.path), signature=artifact.signature)
    return mlprogram.session(opened)


def graph(artifact: Artifact) -> Graph:
    """The operators of the package."""
    opened = _opened(artifact.path)
    return mlprogram.graph(dataclasses.replace(opened, handle=resolved(mlprogram.package_of(opened))))
