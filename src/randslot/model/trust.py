"""The code of models that this user has trusted, on this machine."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b

from ..files import data_folder, read_json, write_json


def hash_code(*texts: str) -> str:
    """Return a hash of Python files by their text."""
    return blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()


def remember_code(code: str, name: str | None) -> None:
    """Record that this user trusts some code, by its hash: a library made with it opens without asking."""
    file = data_folder() / "trusted.json"
    with suppress(OSError):  # without a writable home, the flag is needed each time
        write_json(file, (read_json(file) if file.is_file() else {}) | {code: name})


def is_code_trusted(code: str) -> bool:
    """Whether this user has trusted some code before."""
    file = data_folder() / "trusted.json"
    return file.is_file() and code in read_json(file)
