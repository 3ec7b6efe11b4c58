"""Many small tensors as few: what travels between processes costs a message each, whatever its size."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class Packing:
    """Joins tensors of known shapes into one vector per dtype, and takes them apart again.

    Args:
        tensors: Tensors, or anything with their `shape` and `dtype`.
    """

    def __init__(self, tensors: Sequence[tf.Tensor]):
        self._shapes = [tensor.shape for tensor in tensors]
        self._dtypes = [tensor.dtype for tensor in tensors]

    def is_static(self) -> bool:
        """Whether every shape is known, so that vectors of two packings can be added up."""
        return all(shape.is_fully_defined() for shape in self._shapes)

    def specs(self) -> list[tf.TensorSpec]:
        """Shape and dtype of what `pack` returns."""
        if not self.is_static():
            return [tf.TensorSpec(shape, dtype) for shape, dtype in zip(self._shapes, self._dtypes, strict=True)]
        return [tf.TensorSpec([None], dtype) for dtype in dict.fromkeys(self._dtypes)]

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """One vector per dtype; the tensors themselves where a shape is not known."""
        if not self.is_static():
            return list(tensors)
        return [
            tf.concat([tf.reshape(t, [-1]) for t, d in zip(tensors, self._dtypes, strict=True) if d == dtype], axis=0)
            for dtype in dict.fromkeys(self._dtypes)
        ]

    def unpack(self, packed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that `pack` was given."""
        if not self.is_static():
            return list(packed)
        parts = {}
        for dtype, vector in zip(dict.fromkeys(self._dtypes), packed, strict=True):
            sizes = [s.num_elements() for s, d in zip(self._shapes, self._dtypes, strict=True) if d == dtype]
            parts[dtype] = iter(tf.split(vector, sizes))
        return [tf.reshape(next(parts[dtype]), shape) for shape, dtype in zip(self._shapes, self._dtypes, strict=True)]
