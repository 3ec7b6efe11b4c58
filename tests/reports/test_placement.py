"""What `placement` says, of rows whose sums are done by hand and of a model on a real cluster (K20)."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import keras
import matplotlib as mpl
import pytest
import tensorflow as tf

from tfps.errors import MissingExtraError, UnsupportedError
from tfps.reports.placement import PlacementReport, placement
from tfps.reports.variables import VariableRow

mpl.use("Agg")


def rows(path, shape, ps, slots=2, dtype="float32"):
    """The rows of a float32 variable and its slots, Adam's by default."""
    size = 4
    for dimension in shape:
        size *= dimension
    kinds = ["variable"] + ["slot"] * slots
    names = [path] + [f"adam/{path.replace('/', '_')}_{name}" for name in ("momentum", "velocity")[:slots]]
    return [VariableRow(name, kind, shape, dtype, size, ps, path) for name, kind in zip(names, kinds, strict=True)]


def report(*groups, num_ps, variable_placement="round_robin"):
    return PlacementReport(tuple(row for group in groups for row in group), num_ps, variable_placement)


@pytest.fixture
def embedding_report():
    """F25: an Embedding of 100,000 x 16 with Adam on 3 parameter servers, dealt out in turn."""
    return report(
        rows("embedding/embeddings", (100_000, 16), 0),
        rows("dense/kernel", (16, 8), 1),
        rows("dense/bias", (8,), 2),
        num_ps=3,
    )


@pytest.fixture
def figures():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def test_bytes_per_parameter_server_count_the_slots(embedding_report):
    # 100,000 * 16 * 4 bytes * 3; 16 * 8 * 4 * 3; 8 * 4 * 3.
    assert [server.bytes for server in embedding_report.servers] == [19_200_000, 1_536, 96]
    assert [server.variables for server in embedding_report.servers] == [3, 3, 3]
    assert embedding_report.servers[0].share == pytest.approx(19_200_000 / 19_201_632)
    assert embedding_report.imbalance == pytest.approx(19_200_000 / (19_201_632 / 3))


def test_the_text_says_sizes_imbalance_remedy_and_how_places_were_chosen(embedding_report):
    text = str(embedding_report)
    assert "19.2 MB" in text
    assert "1.5 kB" in text
    assert "96 B" in text
    assert "imbalance 3.00" in text
    assert "round-robin by creation order" in text
    assert "MinSizePartitioner" in text
    assert "embedding/embeddings" in text


def test_a_table_that_outweighs_the_rest_is_for_a_partitioner_under_any_placement(embedding_report):
    for chosen in ("round_robin", "balanced", "by_name()"):
        remedy = PlacementReport(embedding_report.variables, 3, chosen).remedy
        assert "MinSizePartitioner" in remedy
        assert "does not train sharded tables yet" in remedy


def test_a_kernel_that_outweighs_the_rest_is_not_scolded():
    heavy = report(
        rows("dense/kernel", (5_000, 1_000), 0),
        rows("dense/bias", (1_000,), 1),
        rows("dense_1/kernel", (1_000, 400), 0),
        rows("dense_1/bias", (400,), 1),
        num_ps=2,
    )
    assert heavy.imbalance > 1.5
    assert heavy.remedy is None
    assert "Remedy" not in str(heavy)


def test_tables_that_fell_on_one_parameter_server_are_for_balanced_placement():
    # In turn: tables on 0 and 2 -> 0, their biases on 1. Balanced: one table each.
    groups = [
        rows("a/embeddings", (100_000, 16), 0),
        rows("a/bias", (16,), 1),
        rows("b/embeddings", (100_000, 16), 0),
        rows("b/bias", (16,), 1),
    ]
    remedy = report(*groups, num_ps=2).remedy
    assert 'variable_placement="balanced"' in remedy
    assert "19.2 MB" in remedy
    assert "38.4 MB" in remedy


def test_what_balanced_placement_itself_left_uneven_is_for_a_function():
    # Balanced in order of creation: 4 and 4 MB on 0 and 1, then 8 MB on 0. Largest first: 8 and 4 + 4.
    small = [rows(f"small{ps}/kernel", (1_000, 1_000), ps, slots=0) for ps in (0, 1)]
    large = rows("large/kernel", (2_000, 1_000), 0, slots=0)
    assert report(*small, large, num_ps=2, variable_placement="balanced").remedy is None, "1.5 is not over 1.5"
    more = rows("more/kernel", (100_000, 10), 0, slots=0)
    remedy = report(*small, large, more, num_ps=2, variable_placement="balanced").remedy
    assert "A function as variable_placement" in remedy
    # 8 + 4 MB against 4 + 4 MB is the best there is.
    assert "12.0 MB" in remedy
    assert "16.0 MB" in remedy


def test_an_imbalance_of_few_bytes_does_not_matter():
    small = report(rows("embedding/embeddings", (1_000, 16), 0), rows("dense/kernel", (16, 1), 1), num_ps=2)
    assert small.imbalance > 1.5
    assert small.remedy is None


def test_a_parameter_server_with_nothing_on_it_counts():
    lonely = report(rows("dense/kernel", (10, 10), 1), num_ps=4)
    assert [(server.ps, server.variables, server.bytes) for server in lonely.servers] == [
        (0, 0, 0),
        (1, 3, 1_200),
        (2, 0, 0),
        (3, 0, 0),
    ]
    assert lonely.imbalance == 4.0


def test_a_report_of_nothing_is_even():
    empty = report(num_ps=2)
    assert empty.imbalance == 1.0
    assert empty.remedy is None
    assert [server.share for server in empty.servers] == [0.0, 0.0]
    assert str(empty)


def test_the_dict_goes_through_json_unchanged(embedding_report):
    said = embedding_report.to_dict()
    assert json.loads(json.dumps(said)) == said
    assert said["variables"][1] == {
        "path": "adam/embedding_embeddings_momentum",
        "kind": "slot",
        "shape": [100_000, 16],
        "dtype": "float32",
        "bytes": 6_400_000,
        "ps": 0,
        "owner": "embedding/embeddings",
    }
    assert said["servers"][2]["bytes"] == 96
    assert said["variable_placement"] == "round_robin"


def test_scalars_and_variables_on_no_parameter_server_have_rows():
    scalar = VariableRow("adam/iteration", "optimizer", (), "int64", 8, None, "adam/iteration")
    mixed = report(rows("dense/kernel", (1, 1), 0, slots=0), [scalar], num_ps=1)
    assert mixed.servers[0].bytes == 4, "what is on no parameter server is not counted there"
    line = next(line for line in str(mixed).splitlines() if "iteration" in line)
    assert line.split() == ["adam/iteration", "optimizer", "()", "int64", "8", "B", "none"]
    assert mixed.to_dict()["variables"][1]["ps"] is None


def test_names_are_escaped_in_html():
    html = report(rows("<b>bold</b>/kernel", (2, 2), 0), num_ps=1)._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;bold&lt;/b&gt;/kernel" in html


def test_the_repr_is_one_line(embedding_report):
    assert repr(embedding_report) == (
        "<PlacementReport: 9 variables and slots, 19.2 MB on 3 PS; imbalance 3.00 (largest over mean)>"
    )


def test_the_data_frame_has_the_rows(embedding_report):
    unplaced = VariableRow("x", "variable", (), "float32", 4, None, "x")
    frame = PlacementReport((*embedding_report.variables, unplaced), 3, "balanced").to_pandas()
    assert frame.groupby("ps")["bytes"].sum().to_dict() == {0: 19_200_000, 1: 1_536, 2: 96}
    assert frame["ps"].isna().tolist() == [False] * 9 + [True]
    assert list(report(num_ps=1).to_pandas().columns) == list(frame.columns)


@pytest.mark.parametrize(("call", "module"), [("to_pandas", "pandas"), ("plot", "matplotlib.pyplot")])
def test_without_the_extra_text_and_html_work_and_the_rest_names_it(monkeypatch, embedding_report, call, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert "19.2 MB" in str(embedding_report)
    assert "19.2 MB" in embedding_report._repr_html_()
    with pytest.raises(MissingExtraError, match=rf"\.{call}\(\).*pip install tfps\[report\]"):
        getattr(embedding_report, call)()


@pytest.mark.usefixtures("figures")
def test_a_slot_has_the_colour_of_its_variable(embedding_report):
    axes = embedding_report.plot()
    assert [bar.get_height() for bar in axes.containers[0]] == [19_200_000, 0, 0]
    assert axes.get_legend().get_texts()[-1].get_text() == "embedding/embeddings (19.2 MB)"
    assert len(axes.containers) == 3, "one part per variable, slots within"
    assert axes.yaxis.get_major_formatter()(10_000_000, 0) == "10.0 MB"


def strategy(variable_placement):
    made = Mock(spec=tf.distribute.ParameterServerStrategy, variable_placement=variable_placement)
    made.extended = Mock(_num_ps=3)
    return made


class WideModel(keras.Model):
    """A model of 10,000 variables that cost nothing to make."""

    distribute_strategy = strategy("balanced")
    trainable_variables = variables = tuple(
        SimpleNamespace(
            path=f"layer_{number}/kernel",
            value=SimpleNamespace(
                shape=tf.TensorShape((number % 7 + 1, 3)),
                dtype=tf.float32,
                device=f"/job:ps/replica:0/task:{number % 3}/device:CPU:0",
            ),
        )
        for number in range(10_000)
    )


def test_ten_thousand_variables_take_under_a_second():
    model = WideModel()
    start = time.perf_counter()
    said = placement(model)
    text = str(said)
    assert time.perf_counter() - start < 1.0
    assert len(said.variables) == 10_000
    assert "9,980 more" in text
    assert "fewest bytes" in text


def test_a_model_of_no_parameter_server_strategy_is_refused():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(UnsupportedError, match=r"must be made under a parameter-server strategy\. Received"):
        placement(model)


def test_what_is_no_model_is_refused():
    with pytest.raises(UnsupportedError, match=r"must be a keras\.Model\. Received: 3 of type int"):
        placement(3)


def test_a_function_is_named_as_the_one_that_chose():
    def first_server(name, shape, dtype, ps_bytes):
        return 0

    class Chosen(WideModel):
        distribute_strategy = strategy(first_server)

    assert "by the function first_server()" in str(placement(Chosen()))


def test_a_model_without_variables_says_what_to_do():
    class Unbuilt(WideModel):
        trainable_variables = variables = ()

    (note,) = placement(Unbuilt()).notes
    assert "no variables yet: build it" in note


@pytest.fixture(scope="module")
def on_cluster():
    """What `placement` says of models on a cluster of one worker and three parameter servers."""
    script = Path(__file__).with_name("placement_on_cluster.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_path(said):
    return {row["path"]: row for row in said["variables"]}


def test_every_variable_slot_and_metric_of_a_live_model_has_its_place(on_cluster):
    said = by_path(on_cluster["built"])
    kinds = {path: row["kind"] for path, row in said.items()}
    places = {path: (row["ps"], row["bytes"]) for path, row in said.items()}
    # TensorFlow deals the three variables out in turn, and puts slots beside their variable.
    for path, place in {
        "ranker/items/embeddings": (0, 64_000),
        "ranker/score/kernel": (1, 64),
        "ranker/score/bias": (2, 4),
    }.items():
        slots = [f"adam/{path.replace('/', '_')}_{name}" for name in ("momentum", "velocity")]
        assert places.pop(path) == place
        assert [places.pop(slot) for slot in slots] == [place, place]
        assert [kinds[name] for name in (path, *slots)] == ["variable", "slot", "slot"]
        assert [said[name]["owner"] for name in (path, *slots)] == [path] * 3
    assert {path: (kinds[path], said[path]["shape"], said[path]["dtype"]) for path in places} == {
        "adam/iteration": ("optimizer", [], "int64"),
        "adam/learning_rate": ("optimizer", [], "float32"),
        "loss/total": ("metric", [], "float32"),
        "loss/count": ("metric", [], "float32"),
    }
    assert all(row["ps"] in (0, 1, 2) for row in said.values())


def test_the_servers_of_a_live_model_are_those_of_the_cluster(on_cluster):
    servers = on_cluster["built"]["servers"]
    assert [server["ps"] for server in servers] == [0, 1, 2]
    assert sum(server["variables"] for server in servers) == 13
    assert servers[0]["bytes"] >= 192_000
    assert on_cluster["built"]["imbalance"] == pytest.approx(3.0, abs=0.01)
    assert "round-robin by creation order" in on_cluster["text"]


def test_slots_that_do_not_exist_yet_are_announced(on_cluster):
    assert on_cluster["not compiled"]["notes"] == []
    (note,) = on_cluster["not built"]["notes"]
    assert "no slots yet" in note
    assert on_cluster["built"]["notes"] == []


def test_optimizers_under_any_attribute_are_counted(on_cluster):
    said = by_path(on_cluster["two optimizers"])
    slot = said["fast/dense_kernel_momentum"]
    assert (slot["kind"], slot["owner"], slot["shape"]) == ("slot", "dense/kernel", [3, 2])


def test_variables_made_outside_the_scope_are_named(on_cluster):
    said = on_cluster["outside"]
    assert [row["ps"] for row in said["variables"]] == [None, None]
    assert [server["bytes"] for server in said["servers"]] == [0, 0, 0], "empty parameter servers count"
    (note,) = said["notes"]
    assert "On no parameter server yet: outside/kernel, outside/bias" in note
    assert "strategy.scope()" in note


def test_a_shard_is_a_row(on_cluster):
    said = by_path(on_cluster["sharded"])
    halves = [said[f"ranker/items/embeddings/part_{number}"] for number in (0, 1)]
    assert [row["shape"] for row in halves] == [[500, 16], [500, 16]]
    assert [row["bytes"] for row in halves] == [32_000, 32_000]
    assert halves[0]["ps"] != halves[1]["ps"]
    assert {row["owner"] for row in halves} == {"ranker/items/embeddings"}
