"""A prepared program: steps over named arrays, run many times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from edgekit.tensors import Array, Arrays, Signature

Place = Literal["edge", "dpu", "cpu"]
"""`edge` converts between real values and integers at inputs, outputs and operators on the CPU; `dpu` is integer only."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One operator with its activation and the shift to int8. `shift` is the right shift of its accumulator, where it has one."""

    name: str
    type: str
    place: Place
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[[Sequence[Array]], Sequence[Array]]
    shift: int | None = None


@dataclasses.dataclass(frozen=True)
class Program:
    """`positions` are those of the int8 tensors, by name."""

    signature: Signature
    steps: tuple[Step, ...]
    positions: Mapping[str, int]
    last_uses: Mapping[str, int]

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Outputs by name, in the signature's order; inputs in their stored types. Any batch size that the graph's constants allow."""
        held = {spec.name: inputs[spec.name] for spec in self.signature.inputs}
        for _ in self.walk(held):
            pass
        return {spec.name: held[spec.name] for spec in self.signature.outputs}

    def values(self, inputs: Arrays) -> dict[str, Array]:
        """Every tensor by name."""
        held, kept = {spec.name: inputs[spec.name] for spec in self.signature.inputs}, dict[str, Array]()
        for step in self.walk(held):
            kept |= {name: held[name] for name in step.outputs}
        return kept

    def walk(self, held: dict[str, Array]) -> Iterable[Step]:
        """Run step by step over `held`, which keeps what is still read; each step is given after it ran."""
        ends = {spec.name for spec in self.signature.outputs}
        for index, step in enumerate(self.steps):
            held |= dict(zip(step.outputs, step.run([held[name] for name in step.inputs]), strict=True))
            yield step
            for name in {*step.inputs, *step.outputs} - ends:
                if self.last_uses.get(name, -1) <= index:
                    held.pop(name, None)


def last_uses(steps: Sequence[Step]) -> dict[str, int]:
    """The index of the last step that reads each tensor."""
    return {name: index for index, step in enumerate(steps) for name in step.inputs}
