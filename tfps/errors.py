"""The exceptions of tfps, all in one tree.

Every message names the rule, then what was received, then the remedy::

    TfpsError
    ├── UnsupportedVersionError   (ImportError)   this TensorFlow or Keras is outside the tested range
    ├── ClusterConfigError        (ValueError)    the description of the cluster is wrong; lists every fault
    ├── ClusterTimeoutError       (TimeoutError)  some task did not answer before the deadline; says which
    ├── ClusterClosedError        (RuntimeError)  the cluster behind a variable or strategy is gone
    ├── TaskFailedError           (RuntimeError)  a task of a LocalCluster died early; carries its last output
    ├── UnsupportedError          (ValueError)    cannot work under parameter servers, and why
    └── MissingExtraError         (ImportError)   an optional package is needed; says which extra brings it
"""

from __future__ import annotations

from collections.abc import Sequence


class TfpsError(Exception):
    """The base of every exception that tfps itself raises."""


class UnsupportedVersionError(TfpsError, ImportError):
    """The installed TensorFlow or Keras is outside the tested range, or Keras runs on another backend."""


class ClusterConfigError(TfpsError, ValueError):
    """The description of a cluster is wrong.

    Args:
        faults: One sentence per fault found; all of them are reported at once.

    Attributes:
        faults: The faults, a tuple of `str`.
    """

    def __init__(self, faults: Sequence[str]):
        self.faults = tuple(faults)
        head = "The cluster description has " + ("1 fault" if len(faults) == 1 else f"{len(faults)} faults")
        super().__init__(head + ":\n" + "\n".join(f"  - {fault}" for fault in self.faults))


class ClusterTimeoutError(TfpsError, TimeoutError):
    """A wait for tasks of the cluster ended at its deadline; the message says who answered and who did not."""


class ClusterClosedError(TfpsError, RuntimeError):
    """The cluster that holds the variables was closed, or replaced by another one in this process."""


class TaskFailedError(TfpsError, RuntimeError):
    """A process of a `LocalCluster` ended although nobody asked it to; the message ends with its last output."""


class UnsupportedError(TfpsError, ValueError):
    """What was asked for cannot work under parameter servers."""


class MissingExtraError(TfpsError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""
