"""The variables behind a model as plain rows: a Keras model enters, a `VariableRow` per variable leaves.

Everything is read from shapes and devices on the coordinator: no value is fetched and no task of the cluster
is asked, so the rows are free at any moment, during training too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import keras
import tensorflow as tf

from tfps.errors import UnsupportedError
from tfps.training.adopt import optimizers_of


@dataclass(frozen=True)
class VariableRow:
    """One variable of a model, its optimizer or its metrics, or one shard of it.

    Attributes:
        path: Keras's path of the variable; a shard adds `/part_0`, `/part_1`, ...
        kind: `"variable"` of the model, `"slot"` of the optimizer for one of those, any other variable of an
            `"optimizer"`, or `"metric"`.
        shape: The shape, a tuple of `int`.
        dtype: The name of the dtype.
        bytes: The size in bytes.
        ps: The index of the parameter server, or `None` when it is on none.
        owner: The path of the model variable that a slot or a shard belongs to; else `path`.
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    ps: int | None
    owner: str


def check_under_parameter_servers(model: object) -> None:
    """Raises `UnsupportedError` unless `model` is a Keras model of a parameter-server strategy."""
    if not isinstance(model, keras.Model):
        raise UnsupportedError(
            f"`model` must be a keras.Model. Received: {model!r} of type {type(model).__name__}. "
            "Pass the model that was made inside strategy.scope()."
        )
    if not isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy):
        raise UnsupportedError(
            "`model` must be made under a parameter-server strategy. "
            f"Received: a model made under {type(model.distribute_strategy).__name__}. "
            "Make it inside `with tfps.ParameterServerStrategy(...).scope():`."
        )


def variable_rows(model: keras.Model) -> Iterator[VariableRow]:
    """Goes through the variables of a model, its optimizers and its metrics, each of them once.

    Args:
        model: A Keras model.

    Yields:
        A row per variable, or per shard of a sharded one, in the order of Keras's own lists.
    """
    owners = {variable.path.replace("/", "_"): variable.path for variable in model.trainable_variables}
    sources = [("variable", model.variables)]
    sources += [("optimizer", optimizer.variables) for optimizer in optimizers_of(model)]
    sources += [("metric", model.metrics_variables)]
    seen = set()
    for kind, variables in sources:
        for variable in variables:
            if id(variable) in seen:
                continue
            seen.add(id(variable))
            path, value = variable.path, variable.value
            owner = _slot_owner(path, owners) if kind == "optimizer" else None
            shards = getattr(value, "variables", None)
            for number, part in enumerate(shards or [value]):
                shape = tuple(part.shape.as_list())
                yield VariableRow(
                    path=f"{path}/part_{number}" if shards else path,
                    kind="slot" if owner else kind,
                    shape=shape,
                    dtype=part.dtype.name,
                    bytes=math.prod(shape) * part.dtype.size,
                    ps=ps_of(part.device),
                    owner=owner or path,
                )


@functools.cache
def ps_of(device: str) -> int | None:
    """The index of the parameter server in a device's name, or `None` for any other device.

    Example:
        >>> ps_of("/job:ps/replica:0/task:2/device:CPU:0")
        2
    """
    spec = tf.DeviceSpec.from_string(device)
    return spec.task if spec.job == "ps" else None


def _slot_owner(path: str, owners: dict[str, str]) -> str | None:
    """The path of the variable that a slot is for.

    Keras names a slot after its variable, with `/` as `_`, and adds `_momentum` or the like.

    Args:
        path: The path of an optimizer's variable.
        owners: The paths of the model's variables, by the name that their slots begin with.
    """
    name = path.rpartition("/")[2]
    while name := name.rpartition("_")[0]:
        if name in owners:
            return owners[name]
    return None
