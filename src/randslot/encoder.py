"""The import path in modules.json of saved models: `randslot.encoder.SlotEncoder`."""

from .model.encoder import SlotEncoder

__all__ = ["SlotEncoder"]
