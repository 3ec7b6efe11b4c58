"""A variable's initial value that says what it will be before it is made.

Keras hands TensorFlow a function of no arguments. Where a variable goes is decided by its size, so the size has to be
known before the value exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class InitialValue:
    """A callable that makes an initial value.

    Args:
        initializer: Takes `shape` and `dtype`.
        shape: The shape of the value.
        dtype: Its dtype, as a string.
    """

    def __init__(self, initializer: Callable[..., Any], shape: tf.TensorShape, dtype: str):
        self._initializer = initializer
        self.shape = tf.TensorShape(shape)
        self.dtype = tf.as_dtype(dtype)

    def __call__(self) -> Any:
        """Make the value, a tensor of `shape` and `dtype`."""
        return self._initializer(self.shape, dtype=self.dtype.name)
