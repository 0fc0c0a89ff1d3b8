"""Take a model along its route of converters, comparing every hop with the float source, so that a bad conversion is caught and named there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from edgekit import converters, formats, parity
from edgekit.errors import FULL, ConversionError, EdgekitError, MissingPackageError
from edgekit.formats import Model, Session
from edgekit.parity import OutputParity
from edgekit.progress import Progress
from edgekit.target import Tolerance
from edgekit.tensors import Array, Arrays, Signature, quantize

_HINT = "it may be a fault of edgekit or of the tool below it: report it with the model, or give the model in another format"

Runner = Callable[[Sequence[Arrays]], Sequence[Arrays]]
"""Outputs of every sample, in real values."""


def convert(
    source: Model, reference: Runner, accepts: Sequence[str], samples: Sequence[Arrays], tolerance: Tolerance, work: Path, progress: Progress
) -> tuple[Model, tuple[str, ...]]:
    """The model in a format of `accepts`, and the names of the hops it took (none when it already is in one).

    Raises `ConversionError` when a hop fails or computes something else than the source.
    """
    route = converters.route(source.format, accepts)
    if not route:
        return source, ()
    expected = reference(samples)
    try:
        return _along(route, source, expected, samples, tolerance, work, progress)
    except ConversionError as error:
        other = converters.detour(source.format, accepts)
        if not other:
            raise
        with contextlib.suppress(ConversionError, MissingPackageError):  # what stopped the shortest way is then what to say
            model, names = _along(other, source, expected, samples, tolerance, work, progress)
            return dataclasses.replace(model, notices=(*model.notices, f"converted by a longer way, for the shortest fails: {error.message}")), names
        raise


def _along(
    route: Sequence[ModuleType],
    source: Model,
    expected: Sequence[Arrays],
    samples: Sequence[Arrays],
    tolerance: Tolerance,
    work: Path,
    progress: Progress,
) -> tuple[Model, tuple[str, ...]]:
    model, names = source, []
    for number, converter in enumerate(route):
        name = f"{model.format} → {converter.RESULT}"
        progress(number, len(route), f"converting {name}")
        folder = work / f"hop-{number}-of-{len(route)}"
        folder.mkdir()
        with translated(name):
            model = converter.convert(model, folder)
        found = run(formats.session(model), model.signature, samples)
        _check(name, parity.compare_all(expected, found, reference_specs=source.signature.outputs, other_specs=model.signature.outputs), tolerance)
        names.append(name)
    return model, tuple(names)


def run(session: Session, signature: Signature, samples: Sequence[Arrays]) -> list[dict[str, Array]]:
    """Outputs of every sample in the session's stored types, for inputs in real values."""
    with translated("running the model here"):
        return [session.run({spec.name: quantize(sample[spec.name], spec) for spec in signature.inputs}) for sample in samples]


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """The one seam to converters, quantizers and runtimes: whatever they raise that is not edgekit's becomes a `ConversionError`."""
    try:
        yield
    except EdgekitError as error:
        error.hint = error.hint or (_HINT if isinstance(error, ConversionError) else None)
        raise
    except Exception as error:  # compilers raise what their passes raise
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        raise ConversionError(f"{what} failed: {type(error).__name__}: {said[:300]}", _HINT) from error


def _check(hop: str, parities: Sequence[OutputParity], tolerance: Tolerance) -> None:
    for finding in parity.judge(parities, tolerance):
        if finding.severity == "error":
            raise ConversionError(f"{hop}: {finding.message}", finding.hint or "the converter computes something else than the source model")
