"""Run the notebooks of docs/notebooks in this process, each in an empty folder, and save their outputs.

python tools/notebooks.py              # run all, write their outputs into them

A code cell prints text, and may end in a value: an image (PIL) is saved as PNG, anything else as its repr.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"


def list_notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def run_notebook(file: Path, folder: Path) -> dict[str, Any]:
    """Run the code cells of a notebook in order, in a folder; return the notebook with their outputs."""
    book: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    with contextlib.chdir(folder):
        for cell in book["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell["outputs"] = _run_cell("".join(cell["source"]), names, f"{file.name}, cell {number}")
                cell["execution_count"] = number
    return book


def _run_cell(source: str, names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, where, "exec"), names)
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        outputs.append({"data": _show(value), "metadata": {}, "output_type": "display_data"})
    return outputs


def _show(value: Any) -> dict[str, Any]:
    if hasattr(value, "_repr_png_"):
        file = io.BytesIO()
        value.quantize(64).save(file, "PNG", optimize=True)
        return {
            "image/png": base64.b64encode(file.getvalue()).decode(),
            "text/plain": [f"<{value.width} x {value.height}>"],
        }
    return {"text/plain": _lines(repr(value))}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    os.environ.setdefault("TQDM_DISABLE", "1")
    for file in list_notebooks():
        with tempfile.TemporaryDirectory() as folder:
            book = run_notebook(file, Path(folder))
        file.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{file.name}: {file.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
