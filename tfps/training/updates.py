"""An optimizer's update, built to run beside its variable on the parameter server.

The gradient enters; the variable and its slots leave, updated. What the update reads there must be read after the
gradient has arrived: TensorFlow would read it as soon as the step starts, and a slot as old as a step, written back,
takes with it what other workers wrote meanwhile. Only the reads wait, not the arithmetic, so that TensorFlow optimizes
the formula as it does locally and the numbers stay the same to the last bit.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps._compat import CachingVariable, read_natively, updating_device

_thread = threading.local()


@contextlib.contextmanager
def after_arrival(variable: CachingVariable, arguments: Any) -> Iterator[Any]:
    """Build an update of `variable` whose reads wait for its tensors.

    Args:
        variable: The variable to update.
        arguments: Any structure; its tensors are taken to the variable's device.

    Yields:
        The structure with the tensors that arrived.
    """
    with tf.device(variable.device):
        arrived = tf.nest.map_structure(
            lambda x: tf.identity(x) if isinstance(x, tf.Tensor) else x, arguments, expand_composites=True
        )
    tensors = [x for x in tf.nest.flatten(arrived, expand_composites=True) if isinstance(x, tf.Tensor)]
    outer, _thread.arrived = getattr(_thread, "arrived", ()), tensors
    try:
        yield arrived
    finally:
        _thread.arrived = outer


def is_beside_update(variable: CachingVariable) -> bool:
    """Whether an update is being built on the server that holds `variable`."""
    return bool(updating_device() == variable.device)


def read_on_arrival(variable: CachingVariable) -> tf.Tensor:
    """The value of a variable beside the update, once the update's tensors have arrived."""
    with tf.control_dependencies(getattr(_thread, "arrived", ())):
        return read_natively(variable)
