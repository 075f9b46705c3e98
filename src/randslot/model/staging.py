"""Other people's files, as they are handed to a loader: only what a model is made of, and code only if it is trusted.

A loader sees a folder of links. Pickles are not among them, nor are Python files unless their user has said so; an
adapter there names the folder of its base, so that nothing is fetched behind our back.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..errors import RandSlotError
from ..files import data_folder, read_json, write_json
from .checkpoint import ADAPTER_CONFIG
from .hub import MODEL_FILES, WITH_CODE, Source
from .kinds import MODULES, ST_CONFIG

ST = "sentence_transformers"
TRUSTED = "trusted.json"  # the code that this user has trusted, by its hash


@contextmanager
def staged(source: Source, base: Source | None, *, code: bool) -> Iterator[Path]:
    """Give a folder with links to the files of a model, below it one of its base if it is an adapter."""
    with tempfile.TemporaryDirectory(prefix="randslot-model-") as root:
        folder = Path(root, _safe(source.name))
        _link(source, folder, code)
        if base is not None:
            below = Path(root, "base", _safe(base.name))
            _link(base, below, code)
            _point(folder / ADAPTER_CONFIG, below)
            if not (folder / MODULES).exists():
                _write_modules(folder)
        yield folder


def _safe(name: str | None) -> str:
    """Return the last part of a name; transformers makes a Python package of it if the model has code."""
    return Path(name or "model").name or "model"


def _link(source: Source, folder: Path, code: bool) -> None:
    patterns = WITH_CODE if code else MODEL_FILES
    root = Path(str(source.folder))
    folder.mkdir(parents=True)
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = folder / Path(place).relative_to(root)
        below.mkdir(exist_ok=True)
        for name in files:
            if any(fnmatch(name, pattern) for pattern in patterns):
                _link_file(Path(place, name).resolve(), below / name)


def _link_file(file: Path, link: Path) -> None:
    try:
        link.symlink_to(file)
    except OSError:  # systems where links take a privilege
        shutil.copy2(file, link)


def _point(file: Path, base: Path) -> None:
    """Have the configuration of an adapter name the folder of its base."""
    config = read_json(file) | {"base_model_name_or_path": str(base), "revision": None}
    file.unlink()
    file.write_text(json.dumps(config), encoding="utf-8")


def _write_modules(folder: Path) -> None:
    """Say of an adapter on a model for late interaction what sentence-transformers says of that model itself."""
    forward = {"method": "forward", "method_output_name": "embeddings"}
    retrieval = {
        "transformer_task": "retrieval",
        "modality_config": {"text": forward, "image": forward},
        "module_output_name": "token_embeddings",
    }
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{ST}.base.modules.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Mask", "type": f"{ST}.multi_vector_encoder.modules.MultiVectorMask"},
    ]
    (folder / "1_Mask").mkdir()
    files: dict[str, Any] = {
        MODULES: modules,
        ST_CONFIG: {"model_type": "MultiVectorEncoder"},
        "sentence_bert_config.json": retrieval,
        "1_Mask/config.json": {},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


# -- code


def list_code(*sources: Source | None) -> list[Path]:
    """Return the Python files among the files of a model and its base."""
    found = []
    for source in sources:
        if source is not None:
            found += sorted(Path(str(source.folder)).rglob("*.py"))
    return found


def hash_code(files: list[Path]) -> str:
    """Return a hash of Python files; "" for none."""
    if not files:
        return ""
    digest = blake2b(digest_size=12)
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def remember_code(code: str, name: str | None) -> None:
    """Keep that this user, on this machine, has trusted some code: a library made with it opens without asking."""
    file = data_folder() / TRUSTED
    try:
        write_json(file, _read_trusted(file) | {code: name})
    except OSError as error:
        raise RandSlotError(f"cannot note in {file} that {name} is trusted: {error.strerror or error}") from error


def is_code_trusted(code: str) -> bool:
    """Whether this user has trusted some code before, on this machine."""
    return code in _read_trusted(data_folder() / TRUSTED)


def _read_trusted(file: Path) -> dict[str, str]:
    return read_json(file) if file.is_file() else {}
