"""The gate at import: which TensorFlow and Keras tfps was tested with, and Keras's backend."""

from __future__ import annotations

import re

import keras
import tensorflow as tf

from tfps.errors import UnsupportedVersionError

# From the first version of the range up to, not including, the last.
TESTED = {"tensorflow": ((2, 20), (2, 22)), "keras": ((3, 12), (3, 16))}


def check(versions: dict[str, str], backend: str) -> None:
    """Refuse what tfps was not tested with, in one sentence.

    Args:
        versions: The installed version of each package in `TESTED`.
        backend: Keras's backend.

    Raises:
        UnsupportedVersionError: A package is outside its range, or the backend is not TensorFlow.
    """
    for package, (first, end) in TESTED.items():
        found = tuple(int(number) for number in re.findall(r"\d+", versions[package])[:2])
        if not first <= found < end:
            raise UnsupportedVersionError(
                f"tfps needs {package}>={_dotted(first)},<{_dotted(end)}. Received: {package} {versions[package]}. "
                f"Install one in that range, or a tfps that was tested with yours."
            )
    if backend != "tensorflow":
        raise UnsupportedVersionError(
            f"Keras must run on TensorFlow for parameter-server training. Received: the {backend!r} backend. "
            "Set KERAS_BACKEND=tensorflow before keras is imported."
        )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


check({"tensorflow": tf.__version__, "keras": keras.__version__}, keras.backend.backend())
