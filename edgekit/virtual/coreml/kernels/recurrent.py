"""Recurrent layers over sequences [steps, batch, features]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edgekit.virtual.coreml.kernels.arguments import Tensor, flag, number

Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "hard_sigmoid": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "sigmoid_hard": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "linear": lambda x: x,
    "relu": torch.relu,
    "scaled_tanh": lambda x: 1.7159 * torch.tanh(2 / 3 * x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def lstm(
    x: Tensor,
    initial_h: Tensor,
    initial_c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    peephole: Tensor | None = None,
    weight_ih_back: Tensor | None = None,
    weight_hh_back: Tensor | None = None,
    bias_back: Tensor | None = None,
    peephole_back: Tensor | None = None,
    direction: str = "forward",
    output_sequence: Any = False,
    recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    activation: str = "tanh",
    clip: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Long short-term memory, gates in the order input, forget, output, cell. Outputs: sequence (or last step), last h, last c."""
    functions = tuple(ACTIVATIONS[name] for name in (recurrent_activation, cell_activation, activation))
    limit = None if clip is None else number(clip)
    ahead = _lstm_step(weight_hh, peephole, functions, limit)
    if direction != "bidirectional":
        sequence, last = _one_way(x, weight_ih, bias, (initial_h, initial_c), ahead, direction, output_sequence)
        return sequence, last[0], last[1]
    assert weight_ih_back is not None
    assert weight_hh_back is not None
    size = weight_hh.shape[1]
    back = _lstm_step(weight_hh_back, peephole_back, functions, limit)
    first, one = _scan(x, weight_ih, bias, (initial_h[:, :size], initial_c[:, :size]), ahead)
    second, two = _scan(x.flip(0), weight_ih_back, bias_back, (initial_h[:, size:], initial_c[:, size:]), back)
    last = tuple(torch.cat(pair, 1) for pair in zip(one, two, strict=True))
    sequence = torch.cat([first, second.flip(0)], 2) if flag(output_sequence) else last[0].unsqueeze(0)
    return sequence, last[0], last[1]


def _lstm_step(weight_hh: Tensor, peephole: Tensor | None, functions: tuple[Callable[[Tensor], Tensor], ...], limit: float | None) -> Step:
    gate, cell, out = functions
    peeps = None if peephole is None else peephole.chunk(3)

    def step(fed: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = state
        i, f, o, z = (fed + h @ weight_hh.T).chunk(4, 1)
        if peeps is not None:
            i, f = i + c * peeps[0], f + c * peeps[1]
        new = gate(f) * c + gate(i) * cell(z if limit is None else z.clamp(-limit, limit))
        o = o if peeps is None else o + new * peeps[2]
        return gate(o) * out(new), new

    return step


def gru(
    x: Tensor,
    initial_h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    direction: str = "forward",
    output_sequence: Any = False,
    recurrent_activation: str = "sigmoid",
    activation: str = "tanh",
    reset_after: Any = False,
    input_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gated recurrent unit, gates in the order reset, output, update; `reset_after` multiplies by the reset gate after the product with h."""
    gate, out = ACTIVATIONS[recurrent_activation], ACTIVATIONS[activation]
    hidden_bias = torch.zeros(weight_hh.shape[0]) if bias is None else bias
    biases = hidden_bias.chunk(3)
    w_reset, w_out, w_update = weight_hh.chunk(3)

    def step(fed: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = state
        reset, candidate, update = fed.chunk(3, 1)
        r = gate(reset + h @ w_reset.T + biases[0])
        z = gate(update + h @ w_update.T + biases[2])
        inner = r * (h @ w_out.T + biases[1]) if flag(reset_after) else (r * h) @ w_out.T + biases[1]
        return ((1 - z) * out(candidate + inner) + z * h,)

    sequence, last = _one_way(x, weight_ih, input_bias, (initial_h,), step, direction, output_sequence)
    return sequence, last[0]


def rnn(
    x: Tensor,
    initial_h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    direction: str = "forward",
    output_sequence: Any = False,
    activation: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """Plain recurrent layer."""
    function = ACTIVATIONS[activation]

    def step(fed: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (function(fed + state[0] @ weight_hh.T),)

    sequence, last = _one_way(x, weight_ih, bias, (initial_h,), step, direction, output_sequence)
    return sequence, last[0]


def _one_way(
    x: Tensor, weight_ih: Tensor, bias: Tensor | None, state: tuple[Tensor, ...], step: Step, direction: str, output_sequence: Any
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All outputs in the order they are computed, or the last one alone, and the last state."""
    sequence, last = _scan(x.flip(0) if direction == "reverse" else x, weight_ih, bias, state, step)
    return sequence if flag(output_sequence) else sequence[-1:], last


def _scan(x: Tensor, weight_ih: Tensor, bias: Tensor | None, state: tuple[Tensor, ...], step: Step) -> tuple[Tensor, tuple[Tensor, ...]]:
    fed = torch.nn.functional.linear(x, weight_ih, bias)
    outputs = []
    for at in range(x.shape[0]):
        state = step(fed[at], state)
        outputs.append(state[0])
    return torch.stack(outputs), state


OPERATORS = {"lstm": lstm, "gru": gru, "rnn": rnn}
