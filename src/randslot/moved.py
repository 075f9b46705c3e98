"""Modules that were somewhere else before: they can still be imported by their old paths, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader as BaseLoader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "analysis": "lab.analysis",
    "backbone": "model.backbone",
    "card": "model.card",
    "checkpoint": "model.checkpoint",
    "client": "model.remote_model",
    "evaluation": "lab.evaluation",
    "evaluation.run": "lab.evaluation.evaluate",
    "export": "model.export",
    "hub": "model.hub",
    "library.cluster": "library.reading.ray",
    "help": "commands.help",
    "library.commands": "commands.library",
    "library.files": "library.sources",
    "library.home": "library.location",
    "library.qdrant": "library.stores.edge",
    "library.renderers": "library.reading.workers",
    "library.rendering": "library.reading.ray_tasks",
    "library.server": "library.stores.server_location",
    "library.store": "library.stores.store",
    "library.worker": "library.reading.worker",
    "options": "commands.options",
    "readout": "model.readout",
    "reductions": "model.reductions",
    "serve.run": "serve.listen",
    "slots": "model.slots",
    "study": "lab.study",
    "training.reading": "training.reading_loss",
    "training.run": "training.train",
    "training.vision": "model.still_vision",
}
PACKAGES = ("analysis", "evaluation", "study")  # their modules warn, so that one import warns once
# Names that are in another module than the rest of theirs, or are called otherwise now.
RENAMED = {
    "backbone.Content": "model.content.Content",
    "backbone.make_tokenizer": "model.tokenizer.make_tokenizer",
    "client.is_url": "model.remote_model.is_url",
    "export.describe": "model.export.describe_serving",
    "hub.read_json": "files.read_json",
    "library.cluster.OnRay": "library.reading.ray.RayReader",
    "library.home.Home": "library.location.Location",
    "library.server.Server": "library.stores.server_location.ServerLocation",
    "library.server.ServerStore": "library.stores.server.ServerStore",
    "library.server.connect": "library.stores.connection.connect",
    "library.store.Found": "library.stores.store.StoreHit",
    "library.server.make_point": "library.stores.server.make_point",
    "library.server.split_pages": "library.stores.server.split_pages",
    "slots.SIDES": "model.reader.SIDES",
    "slots.Side": "model.reader.Side",
}


class Finder:
    """Finds a module by the path that it had before. Python asks it only for modules that it finds nowhere else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load a module under an old path, or None if this is not one."""
        package, _, old = name.partition(".")
        if package != __package__:
            return None
        new = MOVED.get(old)
        parent, _, last = old.rpartition(".")
        if new is None and parent in MOVED:
            new = f"{MOVED[parent]}.{last}"
        return ModuleSpec(name, Loader(f"{package}.{new}"), is_package=True) if new else None


class Loader(BaseLoader):
    """Loads a module from its new path, under the old one."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Alias(spec.name, self.new)

    def exec_module(self, module: ModuleType) -> None:
        """Warn that the module has moved: once, since Python loads a module once."""
        if module.__name__.partition(".")[2] not in PACKAGES:
            warnings.warn(f"{module.__name__} has moved to {self.new}", DeprecationWarning, stacklevel=2)


class Alias(ModuleType):
    """A module under its old path: every name is looked up in the new one."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(old, f"Moved to {new}.")
        self._new = import_module(new)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        old = f"{self.__name__.partition('.')[2]}.{name}"
        if old in RENAMED:
            module, _, new = RENAMED[old].rpartition(".")
            return getattr(import_module(f"{__package__}.{module}"), new)
        return getattr(self._new, name)


def install() -> None:
    """Let Python find modules by their old paths."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
