"""What single operators cost: the output's gain in dB when one of them alone stays float, and why it costs that."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgekit.backends import Candidate
from edgekit.backends.litert import joins, layers, variants
from edgekit.backends.litert.source import Source
from edgekit.errors import ConversionError
from edgekit.formats import tflite_flatbuffer as flatbuffer
from edgekit.quantize import ranges

SUSPECTS = 10
"""Operators that are tried, the noisiest by their own rounding first."""

WORST = 10

JUDGES = 4
"""Samples that judge an operator: the difference of two builds on the same samples needs few."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What an operator costs: `loss_db` of the outputs, and why; left in float it would take `more_bytes`."""

    operator: str
    loss_db: float
    reason: str
    more_bytes: int


def measure(opened: Source, candidate: Candidate, built: variants.Built) -> tuple[Cost, ...]:
    """The operators that cost most, worst first. Not measured for w8a16, which loses by its weights alone."""
    if candidate.precision == "w8a16":
        return ()
    samples = opened.judges[:JUDGES]
    now = variants.sqnr_db(opened, built.content, samples)
    found: list[Cost] = []
    for name, scopes, reason in _suspects(opened, candidate):
        opened.context.progress(len(found), SUSPECTS, "measure sensitivity")
        try:
            content = built.remake(scopes)
            gain = variants.sqnr_db(opened, content, samples) - now
        except ConversionError:
            continue
        if 0 < gain < float("inf"):
            found.append(Cost(name, round(gain, 3), reason, max(len(content) - len(built.content), 0)))
    return tuple(sorted(found, key=lambda cost: (-cost.loss_db, cost.operator))[:WORST])


def _suspects(opened: Source, candidate: Candidate) -> list[tuple[str, tuple[str, ...], str]]:
    model = opened.fresh()
    rows = _activations(opened, model) if candidate.precision == "w8a8" else _weights(model)
    ordered = sorted(rows, key=lambda row: (-row[0], row[1]))[:SUSPECTS]
    return [(name, scopes, reason) for _, name, scopes, reason in ordered]


def _activations(opened: Source, model: Any) -> list[tuple[float, str, tuple[str, ...], str]]:
    """An activation is free of rounding only where the operators that read it are float as well as the one that makes it."""
    graph, rows = model.subgraphs[0], []
    for op in graph.operators:
        name = flatbuffer.text(graph.tensors[op.outputs[0]].name) if op.outputs else ""
        seen = opened.histograms.get(name)
        if seen is None or seen.counts.sum() == 0:
            continue
        power = float((seen.counts * seen.centers**2).sum() / seen.counts.sum())
        noise = ranges.squared_error(seen, seen.low, seen.high)
        reason = f"{flatbuffer.op_name(model, op)} output spans {seen.low:.4g} to {seen.high:.4g}, its typical size is {power**0.5:.3g}"
        readers = [reader for reader in graph.operators if op.outputs[0] in reader.inputs]
        rows.append((noise / max(power, 1e-30), name, tuple(joins.scope(graph, one) for one in (op, *readers)), reason))
    return rows


def _weights(model: Any) -> list[tuple[float, str, tuple[str, ...], str]]:
    import numpy as np

    graph = model.subgraphs[0]
    rows: list[tuple[float, str, tuple[str, ...], str]] = []
    for layer in layers.find(model):
        weight = layer.layer(model).weight
        largest = np.maximum(np.abs(weight).max(axis=1), 1e-30)
        step, size = largest / 127, np.sqrt((weight**2).mean(axis=1))
        share = float((step**2 / 12).sum() / max(float((size**2).sum()), 1e-30))
        reason = f"{layer.kind} weights reach {float(np.median(largest / np.maximum(size, 1e-30))):.3g} times their typical size"
        rows.append((share, layer.name, (joins.scope(graph, graph.operators[layer.op]),), reason))
    return rows
