"""The name by which saved models know their module: `randslot.encoder.SlotEncoder` stands in their modules.json."""

from .model.encoder import SlotEncoder, load_encoder
from .model.preprocessing import check_query, sort_inputs
from .model.settings import Settings

__all__ = ["Settings", "SlotEncoder", "check_query", "load_encoder", "sort_inputs"]
