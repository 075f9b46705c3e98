"""Opens any model by its name. What most models need takes seconds to import: it is imported only for them."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingError, UsageError
from ..extras import needs_extra
from .text_reader import NAME, UseReader, open_use

if TYPE_CHECKING:
    from .model import RandSlotModel
    from .sentence_model import EmbeddingModel


def open_model(name: str, **options: Any) -> RandSlotModel | EmbeddingModel | UseReader:
    """Open any model to search with: by its folder or hub id, at the address of a server, or "use-multilingual".

    A saved RandSlot model, a backbone that gets new slots, a model of sentence-transformers, of several vectors a page
    or of one, or the small reader of text that the extra `reader` installs. If a `template` is named, it is a backbone
    that gets new slots. Options are those of `load` or `load_embedding_model`; those that are None are left.

    Errors: UsageError for an option that this kind of model does not have. RandSlotError in one line if there is no
    such model, or none that can be run here.
    """
    if name == NAME:
        return open_use(**options)
    try:
        with needs_extra():
            from .remote_model import open_model as open_with_torch
    except MissingError as error:
        if get_close_matches(name, [NAME]) and not Path(name).exists():
            raise UsageError(f"no model {name!r}: did you mean {NAME}?") from error
        raise

    return open_with_torch(name, **options)
