"""Execute every notebook of `notebooks/`: `python -m tests.notebooks [--write]`.

Notebooks enter; the first exception of a cell ends the command. With `--write` their new outputs are stored in place,
less what only says when and how they were executed, so that a difference in version control is a difference to read.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TIMEOUT = 120
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# TensorFlow's C++ code writes these when it is imported, whatever TF_CPP_MIN_LOG_LEVEL says.
_CPP_LOG = re.compile(
    r"^(WARNING: All log messages before absl::InitializeLog|[IWE]\d{4} \d\d:\d\d:).*\n?", re.MULTILINE
)


def execute(path: Path) -> NotebookNode:
    """Run a notebook in a fresh kernel.

    Args:
        path: The notebook; the file stays as it is.

    Returns:
        The notebook with its new outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised; the message shows the cell and the exception.
        nbclient.exceptions.CellTimeoutError: The notebook took more than `TIMEOUT` seconds.
    """
    notebook = nbformat.read(path, as_version=4)
    end = time.monotonic() + TIMEOUT
    NotebookClient(
        notebook,
        timeout_func=lambda cell: max(1, int(end - time.monotonic())),
        resources={"metadata": {"path": str(path.parent)}},
        # Servers inside the kernel cannot be stopped, so it is not asked to end in good order.
        shutdown_kernel="immediate",
        record_timing=False,
        coalesce_streams=True,
    ).execute()
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_without_cpp_log, cell.outputs) if output.get("text") != ""]
    return notebook


def _without_cpp_log(output: NotebookNode) -> NotebookNode:
    if output.output_type == "stream" and output.name == "stderr":
        output.text = _CPP_LOG.sub("", output.text)
    return output


def main() -> None:
    arguments = argparse.ArgumentParser(description="Execute every notebook of notebooks/.")
    arguments.add_argument("--write", action="store_true", help="store the outputs in the notebooks")
    options = arguments.parse_args()
    for path in NOTEBOOKS:
        print(path.name, end=": ", flush=True)
        start = time.monotonic()
        notebook = execute(path)
        if options.write:
            nbformat.write(notebook, path)
        print(f"{time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
