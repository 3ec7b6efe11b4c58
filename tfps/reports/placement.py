"""Which parameter server holds what: a model enters, a `PlacementReport` leaves.

The report is made of rows alone, so it says the same of a running cluster and of rows written by hand; it
counts, names an imbalance that matters, and advises only what would mend it.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from tfps._compat import num_ps
from tfps.reports.render import Table, html_report, human_bytes, import_extra, stacked_bars, text_report
from tfps.reports.variables import (
    VariableRow,
    check_under_parameter_servers,
    variable_rows,
)
from tfps.training.adopt import optimizers_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

# Below either of these an imbalance is not worth a word.
IMBALANCE_LIMIT = 1.5
SURPLUS_LIMIT = 1_000_000

NAMED_IN_NOTE = 3


@dataclass(frozen=True)
class ServerRow:
    """What one parameter server holds.

    Attributes:
        ps: The index of the parameter server.
        variables: How many variables and slots it holds.
        bytes: Their size in bytes.
        share: Their part of the bytes on all parameter servers, from 0 to 1.
    """

    ps: int
    variables: int
    bytes: int
    share: float


@dataclass(frozen=True, repr=False)
class PlacementReport:
    """Which variable and optimizer slot is on which parameter server; made by `tfps.placement`.

    `str()` gives a table of the largest rows, a notebook shows it as HTML, and `to_dict()` has everything.

    Attributes:
        variables: A `VariableRow` per variable and slot.
        num_ps: The number of parameter servers, those that hold nothing included.
        variable_placement: How each place was chosen: `"balanced"`, `"round_robin"`, or the user's
            function as `name()`.
        notes: Sentences about what the rows cannot say.

    Example:
        >>> row = VariableRow("dense/kernel", "variable", (3, 4), "float32", 48, ps=1, owner="dense/kernel")
        >>> PlacementReport((row,), num_ps=2, variable_placement="balanced")
        <PlacementReport: 1 variables and slots, 48 B on 2 PS; imbalance 2.00 (largest over mean)>
    """

    variables: tuple[VariableRow, ...]
    num_ps: int
    variable_placement: str
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def servers(self) -> tuple[ServerRow, ...]:
        """A `ServerRow` per parameter server, in the order of their indices."""
        placed = [row for row in self.variables if row.ps is not None]
        numbers = Counter(row.ps for row in placed)
        loads: Counter[int | None] = Counter()
        for row in placed:
            loads[row.ps] += row.bytes
        total = loads.total() or 1
        return tuple(ServerRow(ps, numbers[ps], loads[ps], loads[ps] / total) for ps in range(self.num_ps))

    @property
    def imbalance(self) -> float:
        """The bytes of the fullest parameter server over the mean of all; 1.0 is even (or empty)."""
        return self._largest / self._mean if self._mean else 1.0

    @functools.cached_property
    def remedy(self) -> str | None:
        """What would mend the imbalance, in a sentence; `None` where nothing would or it does not matter."""
        surplus = self._largest - self._mean
        if self.imbalance <= IMBALANCE_LIMIT or surplus <= SURPLUS_LIMIT:
            return None
        # Slots sit beside their variable, so the two move together.
        movable: Counter[tuple[str, int]] = Counter()
        for row in self.variables:
            if row.ps is not None:
                movable[row.owner, row.ps] += row.bytes
        ways = [
            (
                "A function as variable_placement that spreads the largest variables first",
                sorted(movable.values(), reverse=True),
            )
        ]
        if self.variable_placement == "round_robin":
            balanced = 'tfps.ParameterServerStrategy(..., variable_placement="balanced")'
            ways.insert(0, (balanced, list(movable.values())))
        for way, sizes in ways:
            largest_then = _largest_load(sizes, self.num_ps)
            if largest_then - self._mean <= surplus / 2:
                return (
                    f"{way} would leave about {human_bytes(largest_then)} on the fullest parameter server "
                    f"instead of {human_bytes(self._largest)}."
                )
        (heaviest, _), size = movable.most_common(1)[0]
        if any(row.path == heaviest and _is_table(row) for row in self.variables):
            return (
                "No placement of whole variables evens this out; only a partitioner "
                f"(tf.distribute.experimental.partitioners.MinSizePartitioner) can split {heaviest}, "
                f"{human_bytes(size)} with its slots, and tfps does not train sharded tables yet."
            )
        return None

    def __repr__(self) -> str:
        return f"<PlacementReport: {self._heading}>"

    def __str__(self) -> str:
        return text_report(self._heading, self._tables, self._sentences)

    def _repr_html_(self) -> str:
        return html_report(self._heading, self._tables, self._sentences)

    def to_dict(self) -> dict[str, Any]:
        """Everything in the report as plain values that JSON can carry.

        Returns:
            A dict: `variables` and `servers` are lists of dicts, with the attributes of `VariableRow` and
            `ServerRow` as keys; `imbalance`, `variable_placement`, `remedy` and `notes` are as here.
        """
        return {
            "variables": [{**vars(row), "shape": list(row.shape)} for row in self.variables],
            "servers": [dict(vars(row)) for row in self.servers],
            "imbalance": self.imbalance,
            "variable_placement": self.variable_placement,
            "remedy": self.remedy,
            "notes": list(self.notes),
        }

    def to_pandas(self) -> DataFrame:
        """The rows of the variables as a data frame, a column per attribute of `VariableRow`.

        Returns:
            A `pandas.DataFrame`; a variable on no parameter server has a missing `ps`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = import_extra("pandas", ".to_pandas()")
        columns = list(VariableRow.__dataclass_fields__)
        return pandas.DataFrame([vars(row) for row in self.variables], columns=columns).astype({"ps": "Int64"})

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws a bar of bytes per parameter server, coloured by variable; a slot has its variable's colour.

        Args:
            ax: Where to draw; by default a new figure.

        Returns:
            The `matplotlib.axes.Axes`.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        loads: defaultdict[str, list[int]] = defaultdict(lambda: [0] * self.num_ps)
        for row in self.variables:
            if row.ps is not None:
                loads[row.owner][row.ps] += row.bytes
        title = f"Variables with their slots, imbalance {self.imbalance:.2f}"
        return stacked_bars(loads, title=title, xlabel="parameter server", ax=ax)

    @property
    def _largest(self) -> int:
        return max((server.bytes for server in self.servers), default=0)

    @property
    def _mean(self) -> float:
        return sum(server.bytes for server in self.servers) / max(self.num_ps, 1)

    @property
    def _heading(self) -> str:
        total = sum(server.bytes for server in self.servers)
        return (
            f"{len(self.variables):,} variables and slots, {human_bytes(total)} on {self.num_ps} PS; "
            f"imbalance {self.imbalance:.2f} (largest over mean)"
        )

    @property
    def _sentences(self) -> list[str]:
        chosen = {
            "balanced": "each new variable went to the parameter server with the fewest bytes, slots counted",
            "round_robin": "round-robin by creation order, whatever the size (TensorFlow's own)",
        }.get(self.variable_placement, f"by the function {self.variable_placement}")
        remedy = [f"Remedy: {self.remedy}"] if self.remedy else []
        return [f"Placement: {chosen}; a slot sits beside its variable.", *remedy, *self.notes]

    @property
    def _tables(self) -> list[Table]:
        servers = [
            (str(row.ps), f"{row.variables:,}", human_bytes(row.bytes), f"{row.share:.1%}") for row in self.servers
        ]
        variables = [
            (
                row.path,
                row.kind,
                str(row.shape),
                row.dtype,
                human_bytes(row.bytes),
                "none" if row.ps is None else str(row.ps),
            )
            for row in sorted(self.variables, key=lambda row: -row.bytes)
        ]
        return [
            Table(
                "Parameter servers",
                ("PS", "variables", "bytes", "share"),
                servers,
                frozenset({"PS", "variables", "bytes", "share"}),
            ),
            Table(
                "Variables, largest first",
                ("path", "kind", "shape", "dtype", "bytes", "PS"),
                variables,
                frozenset({"bytes", "PS"}),
            ),
        ]


def placement(model: keras.Model) -> PlacementReport:
    """Says which variable and optimizer slot of a model is on which parameter server.

    Args:
        model: A Keras model made under the scope of a parameter-server strategy, compiled or not.

    Returns:
        The report: `print` it, let a notebook show it, or `.plot()` it.

    Raises:
        UnsupportedError: `model` is not a Keras model, or was not made under a parameter-server strategy.

    Example:
        >>> import tfps
        >>> strategy = tfps.ParameterServerStrategy(tfps.LocalCluster(workers=1, ps=2))
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> tfps.placement(model).servers
        (ServerRow(ps=0, variables=1, bytes=32, share=0.888...), ServerRow(ps=1, variables=1, bytes=4, share=0.111...))
    """
    check_under_parameter_servers(model)
    rows = tuple(variable_rows(model))
    notes = []
    if not model.variables:
        notes.append("The model has no variables yet: build it, or call it on data, and ask again.")
    if any(not optimizer.built for optimizer in optimizers_of(model)):
        notes.append("The optimizer has no slots yet, so none are counted: it makes them when training starts.")
    if outside := [row.path for row in rows if row.ps is None]:
        more = f" and {len(outside) - NAMED_IN_NOTE:,} more" if len(outside) > NAMED_IN_NOTE else ""
        notes.append(
            f"On no parameter server yet: {', '.join(outside[:NAMED_IN_NOTE])}{more}, made outside "
            "strategy.scope(); training moves them there."
        )
    chosen_by = getattr(model.distribute_strategy, "variable_placement", "round_robin")
    if callable(chosen_by):
        chosen_by = f"{getattr(chosen_by, '__name__', type(chosen_by).__name__)}()"
    return PlacementReport(rows, num_ps(model.distribute_strategy), chosen_by, tuple(notes))


def _largest_load(sizes: Iterable[int], num_ps: int) -> int:
    """Gives each size in turn to the emptiest parameter server and returns the bytes of the fullest."""
    loads = [0] * num_ps
    for size in sizes:
        heapq.heapreplace(loads, loads[0] + size)
    return max(loads)


def _is_table(row: VariableRow) -> bool:
    """Whether this looks like a table that is looked up by row, as an Embedding's, and not like a kernel."""
    return len(row.shape) == 2 and row.shape[0] > row.shape[1] and not row.path.endswith("kernel")
