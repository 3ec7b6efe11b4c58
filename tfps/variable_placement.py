"""Which parameter server a new variable goes to.

What is known of a variable before it is made enters; the index of a parameter server leaves. Bytes are counted as
variables come and go, those that follow another one (optimizer slots) included.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfps.errors import UnsupportedError

PlacementPolicy = Callable[[str, tf.TensorShape, tf.DType, tuple[int, ...]], int]


class Placement:
    """Chooses, and keeps count of the bytes on each parameter server.

    Args:
        ps: The number of parameter servers.
        policy: A user's choice; None chooses the one with the fewest bytes.
    """

    def __init__(self, ps: int, policy: PlacementPolicy | None = None):
        self._bytes = [0] * ps
        self._policy = policy

    def choose(self, creation: dict[str, Any]) -> int:
        """The index of the parameter server for a variable with these keyword arguments of its creation.

        Raises:
            UnsupportedError: The user's policy returned no index of a parameter server.
        """
        if self._policy is None:
            return self._bytes.index(min(self._bytes))
        shape, dtype = shape_and_dtype(creation)
        index = self._policy(creation.get("name") or "Variable", shape, dtype, tuple(self._bytes))
        if not isinstance(index, (int, np.integer)) or not 0 <= index < len(self._bytes):
            raise UnsupportedError(
                f"`variable_placement` must return an index from 0 to {len(self._bytes) - 1}. Received: {index!r} for "
                f"the variable {creation.get('name')!r}. Return the index of a parameter server."
            )
        return int(index)

    def count(self, variable: Any) -> None:
        """Add a variable's bytes to its parameter server for as long as it lives."""
        for part in getattr(variable, "variables", [variable]):
            task = re.search(r"/job:ps/.*task:(\d+)", part.device)
            if task:
                size = part.shape.num_elements() * part.dtype.size
                self._bytes[int(task[1])] += size
                weakref.finalize(part, self._forget, int(task[1]), size)

    def _forget(self, ps: int, size: int) -> None:
        self._bytes[ps] -= size


def shape_and_dtype(creation: dict[str, Any]) -> tuple[tf.TensorShape, tf.DType]:
    """The shape and dtype a variable will have, without making its value."""
    value: Any = creation.get("initial_value")
    shape, dtype = creation.get("shape"), creation.get("dtype")
    if callable(value) and hasattr(value, "shape"):
        shape = value.shape
    elif shape is None or dtype is None:
        with tf.Graph().as_default():  # a graph knows the shape of what it would compute
            value = tf.convert_to_tensor(value() if callable(value) else np.asarray(value), dtype=dtype)
            shape, dtype = value.shape, value.dtype
    return tf.TensorShape(shape), tf.as_dtype(dtype or value.dtype)
