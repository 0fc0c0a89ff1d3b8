"""What `edgekit inspect` gathers and prints."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgekit import bundle, formats, hops, opset, plugins
from edgekit import target as targets
from edgekit.backends import Artifact, Backend, Candidate
from edgekit.budget import breakdown
from edgekit.cli import output
from edgekit.formats import Shapes
from edgekit.graph import Graph
from edgekit.opset import Summary, Verdict, table
from edgekit.report.wording import size
from edgekit.target import Target
from edgekit.tensors import Signature, TensorSpec

_LARGEST = 12
_BAR = 24
_NAME = 48


class Inspection(msgspec.Struct, frozen=True):
    """A model or bundle seen from outside and inside. `verdicts` are empty without a target, `graph` null where the format lists no operators."""

    name: str
    format: str
    signature: Signature
    graph: Graph | None
    verdicts: tuple[Verdict, ...] = ()
    summaries: tuple[Summary, ...] = ()
    target: str = ""
    notices: tuple[str, ...] = ()


def of_model(reference: str, inputs: Shapes, target_name: str | None) -> Inspection:
    """Open a model and read its operators; they are judged when the target's artifacts have the model's format."""
    model = formats.open(reference, inputs)
    module = formats.module(model.format)
    graph: Graph | None = module.graph(model) if hasattr(module, "graph") else None
    if target_name is None:
        return Inspection(model.name, model.format, model.signature, graph, notices=model.notices)
    target = targets.load(target_name)
    backend: Backend = plugins.load("edgekit.backends", target.backend)
    if graph is None or model.format not in backend.accepts:
        notice = f"verdicts are for the final artifact: package the model for {target.name}, then inspect the bundle"
        return Inspection(model.name, model.format, model.signature, graph, target=target.name, notices=(*model.notices, notice))
    return _judged(model.name, model.format, model.signature, graph, target, model.notices)


def of_bundle(path: Path, target_name: str | None) -> Inspection:
    """Read a bundle's artifact, judged for its own target or another one."""
    with bundle.open(path) as opened, tempfile.TemporaryDirectory() as scratch:
        manifest = opened.manifest
        opened.extract(manifest.artifact.main, Path(scratch))
        backend: Backend = plugins.load("edgekit.backends", manifest.target.backend)
        main = Path(scratch, Path(manifest.artifact.main).name)
        artifact = Artifact(main, manifest.artifact.format, manifest.signature, Candidate(manifest.artifact.precision))
        target = targets.load(target_name) if target_name else manifest.target
        with hops.translated(f"reading the artifact of {path.name}"):
            graph = backend.graph(artifact)
        return _judged(path.name, artifact.format, manifest.signature, graph, target, manifest.notices)


def show(found: Inspection, *, operators: bool) -> None:
    """Print an inspection for a person."""
    output.say(f"{found.name}  {found.format}")
    for kind, specs in (("input", found.signature.inputs), ("output", found.signature.outputs)):
        for spec in specs:
            output.say(f"  {kind:<7} {spec.name}  {_spec(spec)}")
    if found.graph is not None:
        _show_graph(found.graph)
        _show_verdicts(found)
        output.table(_rows(found, found.graph, everything=operators), right=(0, 2, 3, 5))
    for notice in found.notices:
        output.say(f"note: {notice}", err=True)


def _judged(name: str, format_name: str, signature: Signature, graph: Graph, target: Target, notices: Sequence[str]) -> Inspection:
    verdicts = opset.check(graph, target)
    return Inspection(name, format_name, signature, graph, verdicts, opset.summary(graph, verdicts), target.name, tuple(notices))


def _spec(spec: TensorSpec) -> str:
    scale = "" if spec.scale is None else f"  scale {spec.scale:.6g}, zero point {spec.zero_point}"
    if spec.pixels is not None:
        scale = f"  an image: pixels from {_ends(spec, 0)} to {_ends(spec, 255)}"
    return f"{spec.dtype}[{'x'.join(map(str, spec.shape))}]{' ' + spec.layout if spec.layout else ''}{scale}"


def _ends(spec: TensorSpec, pixel: int) -> str:
    """What a pixel of one value becomes, in each channel where they differ."""
    assert spec.pixels is not None
    values = [f"{pixel * scale + offset:.4g}" for scale, offset in zip(spec.pixels.scale, spec.pixels.offset, strict=True)]
    return values[0] if len(set(values)) == 1 else ":".join(values)


def _show_graph(graph: Graph) -> None:
    counts = Counter(operator.type for operator in graph.operators)
    output.say(f"  size    {size(graph.file_bytes)}")
    output.say(f"  MACs    {graph.macs / 1e6:.1f} M in {len(graph.operators)} operators")
    output.say(f"  types   {', '.join(f'{count} {kind}' for kind, count in counts.most_common())}")


def _show_verdicts(found: Inspection) -> None:
    for summary in found.summaries:
        total = summary.accelerated + summary.fallback + summary.unsupported
        parts = f"{summary.accelerated} of {total} operators, {summary.macs_share:.0%} of the MACs, in {summary.partitions} parts"
        output.say(f"  {summary.delegate:<7} {parts}")
        for text in _certainty(summary.delegate):
            output.say(f"            {text}")
    left = [v for v in found.verdicts if v.status != "accelerated"]
    for kind in dict.fromkeys((v.delegate, v.status, v.type) for v in left):
        group = [v for v in left if (v.delegate, v.status, v.type) == kind]
        output.say(f"    {kind[1]}: {kind[0]}: {len(group)} x {kind[2]}, first {tail(group[0].name)}: {group[0].reason}")
        if group[0].suggestion:
            output.say(f"      {group[0].suggestion}")


def _certainty(delegate: str) -> list[str]:
    """What a delegate's verdicts rest on, where its table says how certain that is."""
    sources = [source for source in table.load(delegate).sources if "certainty" in source]
    return [f"{source['certainty']}: {source['for']} ({source.get('repo', '')} {source.get('path', '')})" for source in sources]


def tail(name: str) -> str:
    """The last part of a long operator name."""
    last = name.rpartition(";")[2] or name
    return last if len(last) <= _NAME else f"…{last[-_NAME:]}"


def _rows(found: Inspection, graph: Graph, *, everything: bool) -> list[tuple[str, ...]]:
    layers = breakdown.layers(graph)
    shown = sorted(layers, key=lambda row: row.operator) if everything else layers[:_LARGEST]
    planned = {v.operator: v for v in found.verdicts if v.delegate == found.verdicts[0].delegate} if found.verdicts else {}
    rows: list[tuple[str, ...]] = [("#", "operator", "bytes", "share", "", "MACs", "verdict", "name")]
    for row in shown:
        bar = "█" * round(_BAR * row.share)
        verdict = planned[row.operator].status if row.operator in planned else ""
        number = str(row.operator) if row.operator >= 0 else ""
        macs = f"{row.macs / 1e6:.1f} M" if row.macs else ""
        rows.append((number, row.type, f"{row.constant_bytes:,}", f"{row.share:.1%}", bar, macs, verdict, tail(row.name)))
    return rows
