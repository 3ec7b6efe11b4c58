"""The gate at import: a version or backend that tfps was not tested with is refused in one sentence."""

import pytest

from tests.training import scripts
from tfps._versions import TESTED, check
from tfps.errors import TfpsError, UnsupportedVersionError

TODAY = {"tensorflow": "2.21.0", "keras": "3.15.1"}


@pytest.mark.parametrize(
    "versions",
    [
        TODAY,
        {"tensorflow": "2.20.0", "keras": "3.12.0"},
        {"tensorflow": "2.21.1-rc0", "keras": "3.15.0.dev20260801"},
    ],
)
def test_tested_versions_pass(versions):
    check(versions, "tensorflow")


@pytest.mark.parametrize(
    ("package", "version", "rule"),
    [
        ("tensorflow", "2.19.1", "tensorflow>=2.20,<2.22"),
        ("tensorflow", "2.22.0", "tensorflow>=2.20,<2.22"),
        ("tensorflow", "3.0.0", "tensorflow>=2.20,<2.22"),
        ("keras", "3.11.3", "keras>=3.12,<3.16"),
        ("keras", "3.16.0", "keras>=3.12,<3.16"),
        ("keras", "2.15.0", "keras>=3.12,<3.16"),
    ],
)
def test_other_versions_are_refused(package, version, rule):
    with pytest.raises(UnsupportedVersionError) as raised:
        check({**TODAY, package: version}, "tensorflow")
    assert rule in str(raised.value)
    assert f"Received: {package} {version}." in str(raised.value)


def test_another_backend_is_refused():
    with pytest.raises(UnsupportedVersionError, match=r"Received: the 'jax' backend\. Set KERAS_BACKEND=tensorflow"):
        check(TODAY, "jax")


def test_the_error_is_an_import_error_and_one_of_tfps():
    assert issubclass(UnsupportedVersionError, ImportError)
    assert issubclass(UnsupportedVersionError, TfpsError)


def test_the_installed_versions_are_in_the_tested_range():
    import keras
    import tensorflow as tf

    check({"tensorflow": tf.__version__, "keras": keras.__version__}, keras.backend.backend())
    assert set(TESTED) == {"tensorflow", "keras"}


def test_the_gate_comes_before_anything_that_would_only_fail():
    said = scripts.run(
        """
import json
import keras

keras.__version__ = "3.1.0"
try:
    import tfps
except ImportError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
    )
    assert said[0] == "UnsupportedVersionError"
    assert said[1].startswith("tfps needs keras>=3.12")
