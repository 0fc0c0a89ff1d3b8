"""Which random samples say something about a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgekit import samples
from edgekit.samples import Samples
from edgekit.tensors import Array, Arrays, Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", (1, 40), "float32"),), (TensorSpec("y", (1, 40), "float32"),))


def _run(function: Callable[[Array], Array]) -> Callable[[Sequence[Arrays]], list[Arrays]]:
    def run(given: Sequence[Arrays]) -> list[Arrays]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return [{"y": function(sample["x"])} for sample in given]

    return run


@pytest.mark.parametrize(
    ("function", "said", "low", "high"),
    [(np.exp, (), -9.0, 9.0), (np.log, ("random inputs are positive",), 0.0, 9.0), (np.arccos, ("random inputs are between 0 and 1",), 0.0, 1.0)],
)
def test_random_inputs_are_such_that_the_model_answers_them(
    function: Callable[[Array], Array], said: tuple[str, ...], low: float, high: float
) -> None:
    loaded = samples.load(None, SIGNATURE, None)
    data = samples.answered(loaded, _run(function))
    assert [notice.partition(":")[0] for notice in data.notices[len(loaded.notices) :]] == list(said)
    assert len(data.random) == samples.RANDOM_ONLY
    assert all(low <= sample["x"].min() and sample["x"].max() <= high for sample in data.random)


def test_without_an_answered_random_input_the_users_own_must_do() -> None:
    own = ({"x": np.full((1, 40), -3.0, np.float32)},)
    data = Samples(own, own, ("a.npy",), samples.load(None, SIGNATURE, None).random, ())
    found = samples.answered(data, _run(lambda x: np.sqrt(-2 - x)))
    assert found.random == ()
    assert "no random input" in found.notices[0]
    assert found.golden == (own, ("a.npy",), 0)
    assert samples.answered(Samples((), (), (), data.random, ()), _run(lambda x: np.sqrt(-2 - x))).random == data.random


def test_the_steps_of_a_stream_stay_in_order_and_travel(tmp_path: Path) -> None:
    np.savez(tmp_path / "steps.npz", x=np.arange(70 * 40, dtype=np.float32).reshape(70, 40))
    data = samples.load(str(tmp_path / "steps.npz"), SIGNATURE, None, stream=True)
    found, names, random = data.golden
    assert [float(step["x"][0, 0]) for step in found[:-random]] == [40.0 * i for i in range(samples.STREAM_STEPS)]
    assert (len(data.train), len(names), random) == (70, samples.STREAM_STEPS + 1, 1)
    assert "the first 50 are compared step by step" in data.notices[-1]


@pytest.mark.parametrize(("size", "steps"), [(40, 50), (10_000, 25), (1_000_000, 4)])
def test_as_many_random_steps_as_a_bundle_holds_stand_for_a_stream(size: int, steps: int) -> None:
    signature = Signature((TensorSpec("x", (1, size), "float32"),), (TensorSpec("y", (1, 4), "float32"),))
    assert len(samples.load(None, signature, None, stream=True).golden[0]) == steps
