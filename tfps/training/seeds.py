"""Random seeds that come from the step, not from a variable every worker races to advance.

A Keras seed generator counts its draws in a variable. Here the coordinator counts: it gives each step the state the
generator would have by then if the steps had run one after the other, so every step draws its own numbers, one worker
draws what local Keras draws, and a step that is run again draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps.training.graphs import current_graph
from tfps.training.trace import active_trace


def next_seed(draw: Callable[..., Any], generator: keras.random.SeedGenerator, ordered: bool = True) -> Any:
    """`SeedGenerator.next` for a step: the generator's next seed, an integer tensor of shape (2,).

    Args:
        draw: Keras's own method, for whatever is no step or lies inside its loops and branches, where the number of
            draws is not known.
        generator: The generator.
        ordered: Whether seeds are counted up or scrambled, as Keras means it.
    """
    trace = active_trace()
    if trace is None or current_graph() is not trace.graph:
        return draw(generator, ordered)
    _, draws = trace.draws.setdefault(id(generator), (generator, []))
    state = trace.seeds[list(trace.draws).index(id(generator))]
    for was_ordered in draws:
        state = advanced(state, was_ordered)
    draws.append(ordered)
    return tf.cast(state, generator.state.dtype)


def advanced(state: Any, ordered: bool) -> Any:
    """The state of a Keras seed generator after one more draw, for tensors and arrays alike."""
    return state + np.array([0, 1]) if ordered else (state + 1) * 5387 % 933199


class SeedStates:
    """The states of a step's seed generators, step after step.

    Args:
        draws: Each generator and, for every draw of a step, whether it is ordered.
    """

    def __init__(self, draws: Sequence[tuple[keras.random.SeedGenerator, Sequence[bool]]]):
        self._draws = draws
        self._start = [np.array(generator.state.numpy(), "int64") for generator, _ in draws]
        self._now = list(self._start)

    def take(self) -> tuple[np.ndarray[Any, Any], list[Any]]:
        """For the next step the states it starts from, int64 of shape (generators, 2), and those it leaves behind."""
        states = np.array(self._now, "int64").reshape(-1, 2)
        for index, (_, draws) in enumerate(self._draws):
            for ordered in draws:
                self._now[index] = advanced(self._now[index], ordered)
        return states, list(self._now)

    def write_back(self, reached: Sequence[Any]) -> None:
        """Leave the generators as the last step that was run leaves them."""
        for (generator, _), start, now in zip(self._draws, self._start, reached, strict=True):
            if (start != now).any():
                generator.state.assign_add(now - start)
