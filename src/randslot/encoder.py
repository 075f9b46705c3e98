"""The name by which saved models know their module: `randslot.encoder.SlotEncoder` in their modules.json."""

from .model.encoder import SlotEncoder

__all__ = ["SlotEncoder"]
