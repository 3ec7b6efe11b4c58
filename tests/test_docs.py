"""What the documentation shows runs: the examples in docstrings, and the Python of the README.

It runs in processes of its own with a limit, since it starts clusters. Modules whose examples start none share one.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tfps

README = Path(__file__).resolve().parents[1] / "README.md"
LIMIT = 100
RUN_EXAMPLES = """
import doctest, importlib, sys
import keras, numpy, tensorflow, tfps

names = {"keras": keras, "np": numpy, "tf": tensorflow, "tfps": tfps}
options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
failed = 0
for module in map(importlib.import_module, sys.argv[1:]):
    failed += doctest.testmod(module, extraglobs=names, optionflags=options).failed
sys.exit(failed > 0)
"""


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(tfps.__path__, "tfps.")
    return [tfps, *(importlib.import_module(name) for _, name, _ in found if not name.endswith("__main__"))]


def examples_of(module: ModuleType) -> list[str]:
    """The source of each docstring's examples."""
    tests = doctest.DocTestFinder(exclude_empty=True).find(module)
    sources = ["".join(example.source for example in test.examples) for test in tests]
    return [source for source in sources if source]


def starts_clusters(module: ModuleType) -> bool:
    return any("LocalCluster(" in source for source in examples_of(module))


def groups() -> list[list[str]]:
    """The modules with examples, in groups that share a process."""
    with_examples = [module for module in modules() if examples_of(module)]
    alone = [[module.__name__] for module in with_examples if starts_clusters(module)]
    return [[module.__name__ for module in with_examples if not starts_clusters(module)], *alone]


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]


@pytest.mark.parametrize("names", groups(), ids=lambda names: names[0] if len(names) == 1 else "without clusters")
def test_the_examples_in_docstrings_run(names: list[str]):
    run("-c", RUN_EXAMPLES, *names)


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_every_example_section_is_one_that_runs(module: ModuleType):
    assert len(re.findall(r"^ +Examples?:$", inspect.getsource(module), re.MULTILINE)) == len(examples_of(module))


@pytest.mark.parametrize("name", tfps.__all__)
def test_every_public_name_has_an_example(name: str):
    assert re.search(r"^Example:\n +>>> ", inspect.getdoc(getattr(tfps, name)) or "", re.MULTILINE)


def test_the_python_of_the_readme_runs_in_its_order(tmp_path: Path):
    script = tmp_path / "readme.py"
    script.write_text(python_of(README.read_text(encoding="utf-8")), encoding="utf-8")
    run(str(script))


def python_of(markdown: str) -> str:
    """The Python blocks that are to run, each line at its own number, so that a traceback points into the text."""
    lines, in_block, previous = [], False, ""
    for line in markdown.splitlines():
        if line.startswith("```"):
            in_block = line == "```python" and previous != "<!-- not run -->"
            lines.append("")
        else:
            lines.append(line if in_block else "")
        previous = line
    return "\n".join(lines) + "\n"


def test_blocks_of_the_readme_that_are_marked_are_not_run():
    text = "a\n```python\nb = 1\n```\n<!-- not run -->\n```python\nc = 1\n```\n```\nd\n```\n```python\ne = 1\n```\n"
    assert python_of(text).split() == ["b", "=", "1", "e", "=", "1"]
    assert python_of(text).splitlines().index("e = 1") == 12
