"""Data in: Keras's epoch iterator, with the batches read here and sent out with the steps.

Keras's `fit`, `evaluate` and `predict` loop over an epoch iterator and hand what it yields to a function. Here it
yields a `Turn`: the next execution in order. The function (see `trainer`) asks the turn for its result, and that is
where executions are sent out, as many as may run ahead, before the oldest one is waited for. So the loop's callbacks
speak of finished work only.

The dataset is read once, on the coordinator: each element is visited exactly once an epoch, in local Keras's order,
whatever the number of workers.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfps._compat import EpochIterator, num_workers
from tfps.training.datasets import iterable_here, without_optionals
from tfps.training.run import Execution, Run

AHEAD_PER_WORKER = 2  # executions: one to run, one so that the worker need not wait for the next
AHEAD_OF_A_SLOW_ONE = 16  # executions per worker while the oldest one is not done
LOOK_AGAIN_SECONDS = 0.005
MOST_SECONDS_TO_ABANDON = 30.0


class ClusterEpochIterator(EpochIterator):
    """Keras's epoch iterator for a model under a parameter-server strategy.

    Args:
        *args: As Keras's `EpochIterator`.
        distribute_strategy: The strategy.
        **kwargs: As Keras's `EpochIterator`.
    """

    def __init__(self, *args: Any, distribute_strategy: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(distribute_strategy)
        self._workers = num_workers(distribute_strategy)
        self._forget()

    @functools.cached_property
    def _dataset(self) -> tf.data.Dataset:
        return iterable_here(self.data_adapter.get_tf_dataset()).prefetch(tf.data.AUTOTUNE)

    @property
    def element_spec(self) -> Any:
        """The structure of `tf.TypeSpec`s of a batch."""
        return without_optionals(self._dataset.element_spec)

    def _get_iterator(self) -> tf.data.Dataset:
        return self._dataset

    def _forget(self) -> None:
        self._turns: Iterator[tuple[int, int, Any]] = iter(())
        self._waiting: deque[tuple[int, int, list[Any]]] = deque()
        self._under_way: deque[tuple[int, int, Execution]] = deque()
        self._run: Run | None = None

    def __iter__(self) -> ClusterEpochIterator:
        self._forget()
        self._turns = self._enumerate_iterator()
        return self

    def __next__(self) -> tuple[int, int, Turn]:
        if not self._under_way and not self._waiting and not self._read_next():
            raise StopIteration
        begin, end, _ = (self._under_way or self._waiting)[0]
        return begin, end, Turn(self)

    def _read_next(self) -> bool:
        """Read the batches of one more execution; False when the epoch has no more."""
        planned = next(self._turns, None)
        if planned is None:
            return False
        begin, end, iterator = planned
        if self.steps_per_epoch:
            end = min(end, self.steps_per_epoch - 1)
        batches = []
        for _ in range(begin, end + 1):
            batch = next(iterator, None)
            if batch is None:
                break
            batches.append(without_optionals(batch))
        if len(batches) <= end - begin:
            self._data_ended(begin + len(batches))
        if not batches:
            return False
        self._waiting.append((begin, begin + len(batches) - 1, batches))
        return True

    def _data_ended(self, steps: int) -> None:
        """The dataset ran out before the epoch did: as in Keras, warn if more was asked for."""
        self._turns = iter(())
        self._current_iterator = None
        if self.num_batches is None:
            self._num_batches: int | None = steps
        if self.steps_per_epoch:
            self._interrupted_warning()
        self.data_adapter.on_epoch_end()

    def result(self, start_run: Callable[[Any, Any], Run], in_rounds: bool = False) -> Any:
        """Send out what may run ahead, and wait for the oldest execution.

        Args:
            start_run: Makes the run of this epoch from a batch's spec and the coordinator.
            in_rounds: Whether nothing may be under way when this returns the first result of a round, and so when a
                callback sees it: a round is one execution per worker. With one worker that is local Keras's order.

        Returns:
            What the run reports of it.

        Raises:
            Exception: Whatever a step raised, as soon as it is known.
        """
        if self._run is None:
            self._run = start_run(self.element_spec, self._coordinator)
        if in_rounds:
            return self._play_round(self._run)
        self._send_out(self._run)
        while not self._oldest_is_over():
            self._send_out(self._run)  # a slow worker must not hold up the others
        return self._report_oldest(self._run)

    def _play_round(self, run: Run) -> Any:
        if not self._under_way:
            self._run_round(run)
        reported = self._report_oldest(run)
        if not self._under_way:
            run.write_back()  # so that callbacks find metrics and seeds where the steps have left them
        return reported

    def _run_round(self, run: Run) -> None:
        run.look_up()
        while len(self._under_way) < self._workers and self._send_next(run):
            pass
        while not all(execution.is_over(LOOK_AGAIN_SECONDS) for _, _, execution in self._under_way):
            self._coordinator.done()  # raises what a step raised

    def _oldest_is_over(self) -> bool:
        over = self._under_way[0][2].is_over(LOOK_AGAIN_SECONDS)
        if not over:
            self._coordinator.done()  # raises what a step raised
        return over

    def _report_oldest(self, run: Run) -> Any:
        return run.report(self._under_way.popleft()[2])

    def _send_out(self, run: Run) -> None:
        while self._may_send() and self._send_next(run):
            pass

    def _send_next(self, run: Run) -> bool:
        if not self._waiting and not self._read_next():
            return False
        begin, end, batches = self._waiting.popleft()
        self._under_way.append((begin, end, self._start(run, batches)))
        return True

    def _start(self, run: Run, batches: list[Any]) -> Execution:
        return run.start(batches)

    def _may_send(self) -> bool:
        """Whether another execution may go ahead; behind a slow one, those that are finished do not count."""
        over = [execution.is_over() for _, _, execution in self._under_way]
        ahead = len(over) if over and over[0] else over.count(False)
        return ahead < AHEAD_PER_WORKER * self._workers and len(over) < AHEAD_OF_A_SLOW_ONE * self._workers

    @contextlib.contextmanager
    def catch_stop_iteration(self) -> Iterator[None]:
        """Around an epoch: at its end wait for every step and leave metrics and seeds where they belong."""
        try:
            yield
        except StopIteration:
            pass  # a turn was given out, and then there was no batch for it
        except BaseException:
            self._abandon()
            raise
        if self._run is not None:
            while self._under_way:
                if self._oldest_is_over():
                    self._report_oldest(self._run)
            self._run.write_back()
        self._forget()

    def _abandon(self) -> None:
        """Leave the cluster ready for the next call: nothing of this epoch queued, running or still to be raised."""
        self._forget()
        deadline = time.monotonic() + MOST_SECONDS_TO_ABANDON
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # one failed step is what is being raised already
                if self._coordinator.done():
                    return
            time.sleep(LOOK_AGAIN_SECONDS)


class Turn:
    """The next execution in order, as Keras's loops pass it on to the model's function.

    Keras's `predict` takes `steps_per_execution` items from it first; there is one, the turn itself.
    """

    def __init__(self, epoch: ClusterEpochIterator):
        self._epoch = epoch
        self._items = iter((self,))

    def __next__(self) -> Turn:
        return next(self._items)

    def result(self, start_run: Callable[[Any, Any], Run], in_rounds: bool = False) -> Any:
        """What the execution reports; see `ClusterEpochIterator.result`."""
        return self._epoch.result(start_run, in_rounds)
