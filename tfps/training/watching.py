"""Which callbacks watch batches, and so must find nothing under way when they are called.

Steps run ahead of the reports. A callback that acts between two batches (sets the learning rate, saves, stops
training) is to find the model as these batches left it, so executions then go out in rounds of one per worker.
"""

from __future__ import annotations

from collections.abc import Iterable

import keras

# They only write down what the logs say.
_LOGGERS = (keras.callbacks.History, keras.callbacks.ProgbarLogger, keras.callbacks.TensorBoard)
# They act between batches only if told how often.
_SAVERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)


def watches_batches(callbacks: Iterable[keras.callbacks.Callback], kind: str) -> bool:
    """Whether any of `callbacks` does something between batches.

    Args:
        callbacks: Keras callbacks. One with a true `async_safe`, Keras's own word for it, is left out.
        kind: `"train"`, `"test"` or `"predict"`.
    """
    return any(_watches(callback, kind) for callback in callbacks)


def _watches(callback: keras.callbacks.Callback, kind: str) -> bool:
    if type(callback) in _LOGGERS or getattr(callback, "async_safe", False):
        return False
    if type(callback) in _SAVERS and callback.save_freq == "epoch":
        return False
    names = (f"on_{kind}_batch_begin", f"on_{kind}_batch_end", "on_batch_begin", "on_batch_end")
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(keras.callbacks.Callback, name)
        for name in names
        if kind == "train" or f"_{kind}_" in name
    )
