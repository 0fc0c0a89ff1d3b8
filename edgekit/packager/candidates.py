"""Build the candidates of a plan, run each here, and weigh it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from edgekit import budget, hops, opset, parity, planner
from edgekit.backends import Artifact, Context
from edgekit.errors import ConversionError
from edgekit.formats import Model
from edgekit.packager.job import Built, Job, shapes_of
from edgekit.parity import OutputParity
from edgekit.planner import Candidate, Plan, Point
from edgekit.quantize import choices
from edgekit.tensors import Arrays


def search(job: Job, model: Model) -> tuple[Plan, Built]:
    """Build tiers of candidates, most faithful first, until the plan is settled: the plan and its choice, the smallest where nothing fits.

    Raises `ConversionError` when none can be built.
    """
    prefer, tolerances = job.options.prefer, job.target.tolerance.quantization
    tiers, skipped = _tiers(job, model)
    build = _prepare(job, model)
    job.progress(0, 0, "running the float reference")
    expected = job.reference.run(job.data.judged)
    tried: list[Built | Point] = []
    for tier in tiers:
        if planner.settled(_points(tried), prefer, tolerances):
            skipped |= {candidate.precision: "not built: one that comes before it fits" for candidate in tier}
            continue
        for candidate in tier:
            job.progress(len(tried), sum(map(len, tiers)), f"building {candidate.precision}")
            tried.append(_measure(job, build, candidate, expected))
    _check_built(job, tried)
    plan = planner.choose(_points(tried), tolerances, prefer, skipped)
    if better := _with_more_in_float(job, plan, tried):
        tried.append(_measure(job, build, better, expected))
        plan = planner.choose(_points(tried), tolerances, prefer, skipped)
    return plan, _choice(plan, tried)


def _tiers(job: Job, model: Model) -> tuple[list[list[Candidate]], dict[str, str]]:
    """What to build, tier by tier, and what not, with the reason. A model that is quantized already keeps its precision."""
    options = job.options
    own = job.backend.own_precision(model) if options.precision == "auto" else None
    tells = getattr(job.backend, "exact_in_half", None)
    return planner.tiers(
        job.target,
        job.backend.precisions,
        own or options.precision,
        options.rounding,
        calibrated=bool(job.data.train),
        integer_edges=options.io == "int8",
        exact_in_half=tells is not None and options.precision == "auto" and tells(model),
    )


def _prepare(job: Job, model: Model) -> Callable[[Candidate], Artifact]:
    options, folder = job.options, job.work / "build"
    folder.mkdir()
    with hops.translated(f"preparing {model.name} for {job.target.backend}"):
        given, others = job.data.train or job.data.random, shapes_of(options.others)
        context = Context(job.target, given, folder, options.io, job.progress, options.limits, options.preprocess, others, options.ranges)
        return job.backend.prepare(model, context)


def _points(tried: Sequence[Built | Point]) -> list[Point]:
    return [found.point if isinstance(found, Built) else found for found in tried]


def _check_built(job: Job, tried: Sequence[Built | Point]) -> None:
    """Raises `ConversionError` when there is nothing to choose from."""
    if not tried:
        what = f"{job.source.name}: every precision of {job.target.name} has fixed ranges, which only data can give"
        raise ConversionError(what, "give --calibration")
    if not any(isinstance(found, Built) for found in tried):
        first = _points(tried)[0]
        raise ConversionError(f"{job.source.name}: {first.candidate.precision} could not be built: {first.failed}", first.hint or None)


def _choice(plan: Plan, tried: Sequence[Built | Point]) -> Built:
    """What the plan chose; the smallest that could be built where it chose nothing."""
    chosen = tried[plan.chosen] if plan.chosen is not None else None
    return chosen if isinstance(chosen, Built) else min((b for b in tried if isinstance(b, Built)), key=lambda b: b.point.total_bytes)


def _with_more_in_float(job: Job, plan: Plan, tried: Sequence[Built | Point]) -> Candidate | None:
    """The choice of `auto`, with the operators in float that room below the model's ceiling pays best for; None where there is none."""
    chosen, limit = tried[plan.chosen] if plan.chosen is not None else None, job.options.limits.max_model_bytes
    if not isinstance(chosen, Built) or limit is None or job.options.precision != "auto" or job.options.prefer != "fidelity":
        return None
    gains = {name: gain for name, gain, _ in chosen.artifact.spared}
    costs = {name: more for name, _, more in chosen.artifact.spared}
    names = choices.worth_most(gains, costs, limit - chosen.point.model_bytes)
    return msgspec.structs.replace(chosen.artifact.candidate, keep_float=names) if names else None


def _measure(job: Job, build: Callable[[Candidate], Artifact], candidate: Candidate, expected: Sequence[Arrays]) -> Built | Point:
    """Build a candidate, run it here on the judged samples, and weigh it; a bare point when it cannot be built and others might."""
    try:
        with hops.translated(f"building {candidate.precision}"):
            artifact = build(candidate)
    except ConversionError as error:
        if job.options.precision != "auto":
            raise
        return Point(candidate, failed=error.message, hint=error.hint or "")
    name, limits = f"model ({artifact.candidate.precision})", job.options.limits
    with ThreadPoolExecutor(1) as pool:  # deflating is as long as the runs
        weighed = pool.submit(budget.usage, artifact.path, job.runtime, name=name, parts=artifact.parts)
        found = hops.run(job.backend.emulate(artifact), artifact.signature, job.data.judged)
    loss = parity.compare_all(expected, found, reference_specs=job.source.signature.outputs, other_specs=artifact.signature.outputs)
    usage = weighed.result()
    point = Point(
        artifact.candidate,
        usage.model_bytes,
        usage.total_bytes(limits.size_of),
        _fidelity_db(loss),
        min((output.top1 for output in loss if output.top1 is not None), default=None),
        _accelerated(job, artifact),
        excess=tuple(f"{excess.what} is {excess.over_bytes / 1e6:.2f} MB over" for excess in budget.check(usage, limits)),
    )
    return Built(artifact, point, usage, loss)


def _accelerated(job: Job, artifact: Artifact) -> float:
    """Share of the artifact's MACs that the planned delegate takes."""
    if not job.target.delegates:
        return 1.0
    graph = job.backend.graph(artifact)
    verdicts = opset.judge(graph, job.target.delegates[0], job.target.options)
    return opset.summary(graph, verdicts)[0].macs_share if verdicts else 1.0


def _fidelity_db(loss: Sequence[OutputParity]) -> float | None:
    """SQNR of the worst output; 0 when one is broken, None when all are exact."""
    if any(output.mismatch or output.non_finite for output in loss):
        return 0.0
    return min((output.sqnr_db for output in loss if output.sqnr_db is not None), default=None)
