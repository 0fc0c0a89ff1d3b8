"""One signature of a .tflite file with several, as a file of its own: runtimes start at the first graph, whichever signature that has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgekit.errors import UsageError, close_match
from edgekit.formats import tflite_flatbuffer, tflite_reader, tflite_rewrite

DEFAULT = "serving_default"


def keys(path: Path) -> tuple[str, ...]:
    """Names of a file's signatures, in its order. Raises as `tflite_reader.read`."""
    tflite_reader.read(path)  # checks every offset that is relied on here
    model = tflite_flatbuffer.schema().Model.GetRootAs(path.read_bytes(), 0)
    return tuple(tflite_flatbuffer.text(model.SignatureDefs(i).SignatureKey()) for i in range(model.SignatureDefsLength()))


def choose(path: Path, found: tuple[str, ...], key: str) -> str:
    """The signature `key`; where none is named the default one, else the first. Raises `UsageError`."""
    if key and key not in found:
        hint = f"{close_match(key, found)}; give {path}#SIGNATURE" if found else "the file states no signatures: leave the name out"
        raise UsageError(f"{path}: no signature is called {key!r}", hint)
    return key or (DEFAULT if DEFAULT in found else found[0])


def alone(path: Path, key: str, out: Path) -> Path:
    """Write `path` with the signature `key` alone: its graph first, then the graphs that it calls."""

    def change(model: Any) -> None:
        definition = next(d for d in model.signatureDefs if tflite_flatbuffer.text(d.signatureKey) == key)
        order = _reached(model, int(definition.subgraphIndex))
        places = {old: new for new, old in enumerate(order)}
        model.subgraphs = [model.subgraphs[old] for old in order]
        for options, name in _calls(model.subgraphs):
            setattr(options, name, places[getattr(options, name)])
        definition.subgraphIndex = 0
        model.signatureDefs = [definition]

    return tflite_rewrite.rewrite(path, out, change)


def _reached(model: Any, first: int) -> list[int]:
    order = [first]
    for place in order:  # grows while it is walked
        called = {getattr(options, name) for options, name in _calls([model.subgraphs[place]])}
        order += sorted(called - set(order))
    return order


def _calls(graphs: Any) -> Iterator[tuple[Any, str]]:
    """Where operators name graphs: the options, and the field."""
    for operator in (operator for graph in graphs for operator in graph.operators or []):
        for options in (operator.builtinOptions, operator.builtinOptions2):
            for name, value in vars(options).items() if options is not None else ():
                if "subgraph" in name.lower() and isinstance(value, int) and value >= 0:
                    yield options, name
