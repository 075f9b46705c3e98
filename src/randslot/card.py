"""The model card that is saved with a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentence_transformers.multi_vector_encoder.model_card import MultiVectorEncoderModelCardData

TAGS = ["sentence-transformers", "multi-vector", "late-interaction", "visual-document-retrieval", "randslot"]


@dataclass
class RandSlotCard(MultiVectorEncoderModelCardData):
    """Facts about a RandSlot model, shown through `model_card.md`.

    It replaces sentence-transformers' own card, whose usage example encodes text as documents.
    """

    tags: list[str] = field(default_factory=lambda: list(TAGS))
    template_path: Path = field(default=Path(__file__).with_name("model_card.md"), init=False, repr=False)

    def run_usage_snippet(self) -> None:
        """Run nothing: the card's example is fixed."""
        self.usage_examples: list[Any] = []

    def get_default_model_name(self) -> str:
        return "RandSlot model"

    def get_model_specific_metadata(self) -> dict[str, Any]:
        encoder = self.model[0]
        metadata: dict[str, Any] = super().get_model_specific_metadata()
        return metadata | {
            "settings": encoder.get_config_dict(),
            "family": encoder.family,
            "backbone": encoder.source.name or "built in memory",
            "revision": encoder.source.revision or "not recorded",
        }
