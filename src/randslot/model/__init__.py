"""Models that encode pages and queries as vectors; `open_model` opens any of them by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..extras import needs_extra
from .reader import Identity, PageReader, is_url

if TYPE_CHECKING:
    from .encoder import SlotEncoder
    from .model import RandSlotModel, load, tiny, untrained
    from .remote_model import remote
    from .sentence_model import EmbeddingModel
    from .settings import Settings
    from .text_reader import UseReader

__all__ = [
    "EmbeddingModel",
    "Identity",
    "PageReader",
    "RandSlotModel",
    "Settings",
    "SlotEncoder",
    "load",
    "open_model",
    "remote",
    "tiny",
    "untrained",
]

_HOMES = {
    "EmbeddingModel": "sentence_model",
    "RandSlotModel": "model",
    "Settings": "settings",
    "SlotEncoder": "encoder",
    "load": "model",
    "remote": "remote_model",
    "tiny": "model",
    "untrained": "model",
}

LOADING = ("device", "dtype", "attn_implementation", "trust_remote_code", "known_code")  # not settings


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that opening a library needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra():
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def open_model(name: str, **options: Any) -> RandSlotModel | EmbeddingModel | UseReader:
    """Open a model by its folder, hub id, server URL, or the name "use-multilingual".

    A folder or hub id holds a saved RandSlot model, a backbone (which gets new slots), or a multi-vector or
    single-vector model of sentence-transformers. With a `template`, it is read as a backbone. Options: those of `load`,
    or those in `LOADING` and the changeable settings of `EmbeddingSettings`; None means the default.
    """
    from .text_reader import NAME, UseReader

    given = {option: value for option, value in options.items() if value is not None}
    if name == NAME:
        for option in ("revision", "dtype", "device", "trust_remote_code"):  # fixed, and it has no code
            given.pop(option, None)
        reader = UseReader()
        reader.use(**given)
        return reader
    return open_torch_model(name, **given)


def open_torch_model(name: str, **options: Any) -> RandSlotModel | EmbeddingModel:
    """Like `open_model`, for models that run in torch or on a server."""
    from .text_reader import NAME

    if name == NAME:
        raise UsageError(f"{name} only works with index, search, serve, compare, and evaluate --by both")
    given = {option: value for option, value in options.items() if value is not None}
    with needs_extra():
        from . import sentence_model
        from .hub import MODEL_FILES, WITH_CODE, resolve
        from .model import load
        from .remote_model import remote

    if is_url(name):
        if fixed := sorted(given.keys() - {"query_vectors", "page_vectors", "width"}):
            raise UsageError(f"{fixed[0]}={given[fixed[0]]!r} cannot be set for a server: its export fixes it")
        return remote(name, **given)
    has_code = given.get("trust_remote_code") or given.get("known_code")
    source = resolve(name, given.pop("revision", None), files=WITH_CODE if has_code else MODEL_FILES)
    kind = sentence_model.find_kind(source)
    if kind in ("randslot", "backbone") or "template" in given:
        given.pop("known_code", None)
        return load(source, **given)
    loading = {option: given.pop(option) for option in LOADING if option in given}
    model, code = sentence_model.load_checked(source, kind, **loading)
    reader = sentence_model.make_reader(model, source, code)
    reader.use(**given)
    return reader
