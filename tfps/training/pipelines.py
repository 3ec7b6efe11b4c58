"""Data where the training is: a function makes a `tf.data` pipeline on every worker, and steps draw batches there.

A function of an input context enters `fit` or `evaluate` in the place of a dataset; what leaves is an epoch iterator
like that of `epochs`, only that an execution goes out with a number of steps and comes back saying for how many of
them its worker had a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps._compat import DataAdapter, dataset_adapter, iterators_on_workers, num_workers
from tfps.errors import ClusterTimeoutError, UnsupportedError
from tfps.training.datasets import without_optionals
from tfps.training.epochs import LOOK_AGAIN_SECONDS, ClusterEpochIterator
from tfps.training.run import Run

MOST_SECONDS_WITHOUT_BATCH = 60.0


class Pipelines(DataAdapter):
    """The pipelines that a function makes, one for each worker, as Keras's epoch iterator takes data.

    Args:
        dataset_fn: Takes a `tf.distribute.InputContext` and returns a `tf.data.Dataset` of batches. Called once for
            each worker, with the number of workers as `num_input_pipelines` and the worker's index as
            `input_pipeline_id`, in a graph of its own that the worker runs.
        workers: The number of workers.
        **options: What Keras makes a dataset into batches with (`class_weight`, ...).
    """

    def __init__(self, dataset_fn: Callable[[Any], tf.data.Dataset], workers: int, **options: Any):
        def pipeline(context: Any) -> tf.data.Dataset:
            dataset = dataset_fn(context)
            if not isinstance(dataset, tf.data.Dataset):
                raise UnsupportedError(
                    "A function that is passed as data must return a tf.data.Dataset of batches. "
                    f"Received: {type(dataset).__name__}. Take an input context and return a dataset."
                )
            return dataset_adapter(dataset, **options).get_tf_dataset().prefetch(tf.data.AUTOTUNE)

        contexts = [tf.distribute.InputContext(workers, index) for index in range(workers)]
        self.makers = [tf.function(pipeline, autograph=False).get_concrete_function(context) for context in contexts]

    @property
    def element_spec(self) -> Any:
        """The structure of `tf.TypeSpec`s of a batch."""
        return self.makers[0].structured_outputs.element_spec

    @property
    def num_batches(self) -> None:
        """Not known before the workers' pipelines have ended."""


class PipelineEpochIterator(ClusterEpochIterator):
    """The epoch iterator for data that is made on the workers.

    Without `steps_per_epoch` an epoch is over when every worker's pipeline has ended, so each element of each of them
    is visited once; the next epoch starts them anew. With it, the next epoch goes on where this one ended.

    Args:
        x: A function of a `tf.distribute.InputContext`.
        **options: As Keras's `EpochIterator`.
    """

    def __init__(self, x: Callable[[Any], tf.data.Dataset], *, distribute_strategy: Any, **options: Any):
        in_pipelines = {name: options.pop(name, None) for name in ("y", "sample_weight", "class_weight")}
        super().__init__(
            Pipelines(x, num_workers(distribute_strategy), **in_pipelines),
            distribute_strategy=distribute_strategy,
            **options,
        )
        self._iterators: Any = None

    @property
    def element_spec(self) -> Any:
        """The structure of `tf.TypeSpec`s of a batch."""
        return without_optionals(self.data_adapter.element_spec)

    def reset(self) -> None:
        """Start all pipelines anew with the next epoch."""
        super().reset()
        self._iterators = None

    def _forget(self) -> None:
        super()._forget()
        self._steps_sent = 0
        self._empty_since: float | None = None

    def __iter__(self) -> PipelineEpochIterator:
        self._forget()
        if self._iterators is None or self.steps_per_epoch is None:
            self._iterators = iterators_on_workers(self._coordinator, self.data_adapter.makers)
            self._ended: set[int | None] = set()
        return self

    def _read_next(self) -> bool:
        if len(self._ended) == self._workers or self._steps_sent == self.steps_per_epoch:
            return False
        steps = self.steps_per_execution
        if self.steps_per_epoch:
            steps = min(steps, self.steps_per_epoch - self._steps_sent)
        self._waiting.append((self._steps_sent, self._steps_sent + steps - 1, [None] * steps))
        self._steps_sent += steps
        return True

    def _start(self, run: Run, batches: list[Any]) -> Any:
        return run.start_drawing(self._iterators, len(batches))

    def result(self, start_run: Callable[[Any, Any], Run], in_rounds: bool = False) -> Any:
        """As `ClusterEpochIterator.result`, for the oldest execution whose worker had a batch for it.

        Raises:
            StopIteration: There was none left.
        """
        while self._under_way or self._waiting or self._read_next():
            logs = super().result(start_run, in_rounds)
            if logs is not None:
                return logs
        raise StopIteration

    def _report_oldest(self, run: Run) -> Any:
        begin, end, execution = self._under_way[0]
        logs = super()._report_oldest(run)
        (part,) = execution.parts
        if part.steps:
            self._empty_since = None
        missing = end + 1 - begin - part.steps
        if missing:
            self._ended.add(part.worker)
            self._steps_sent -= missing
            self._look_after_the_others()
        return logs

    def _look_after_the_others(self) -> None:
        """Give way to the workers that still have batches; do not wait for ever for one that is gone.

        Results come in order, so a slow worker's execution holds back the empty ones that were sent out after it.
        """
        if len(self._ended) < self._workers:
            self._empty_since = self._empty_since or time.monotonic()
            if time.monotonic() - self._empty_since > MOST_SECONDS_WITHOUT_BATCH:
                raise ClusterTimeoutError(
                    "Every worker must read its own part of the data to its end. Received: no batch for "
                    f"{MOST_SECONDS_WITHOUT_BATCH:.0f} s from the workers "
                    f"{sorted(set(range(self._workers)) - self._ended)}, whose parts have not ended. "
                    "Restart these tasks and train again."
                )
            time.sleep(LOOK_AGAIN_SECONDS)
        elif not self._under_way and not self.steps_per_epoch:
            self._num_batches = self._steps_sent
        elif not self._under_way and self._steps_sent < self.steps_per_epoch:
            self._interrupted_warning()
            self._iterators = None
