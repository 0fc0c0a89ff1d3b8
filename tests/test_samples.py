"""Which random samples say something about a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
