"""The model card that is saved with a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentence_transformers.multi_vector_encoder.model_card import MultiVectorEncoderModelCardData

from .reader import Identity, find_teacher

TAGS = ["sentence-transformers", "multi-vector", "late-interaction", "visual-document-retrieval", "randslot"]


@dataclass
class RandSlotCard(MultiVectorEncoderModelCardData):
    """Facts about a RandSlot model, shown through `model_card.md`.

    It replaces sentence-transformers' own card, whose usage example encodes text as documents.
    """

    tags: list[str] = field(default_factory=lambda: list(TAGS))
    trained_on: str = ""  # what a run of ours says of itself
    template_path: Path = field(default=Path(__file__).with_name("model_card.md"), init=False, repr=False)

    def run_usage_snippet(self) -> None:
        """Run nothing: the card's example is fixed."""
        self.usage_examples: list[Any] = []

    def set_losses(self, losses: list[Any]) -> None:
        """Name no loss by its class."""

    def set_widget_examples(self, dataset: Any) -> None:
        """Take no examples: they would be decoded pages."""

    def extract_dataset_metadata(
        self, dataset: Any, dataset_metadata: list[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Note the number of pairs only: statistics would encode queries as pages."""
        return [{"name": "Pairs of query and page", "size": len(dataset)}] if dataset else dataset_metadata

    def get_default_model_name(self) -> str:
        return "RandSlot model"

    def get_model_specific_metadata(self) -> dict[str, Any]:
        encoder = self.model[0]  # also of a plain MultiVectorEncoder
        metadata: dict[str, Any] = super().get_model_specific_metadata()
        return metadata | {
            "settings": encoder.get_config_dict(),
            "teacher": _describe_teacher(find_teacher(encoder)),
            "trained_on": self.trained_on,
            "family": encoder.family.name,
            "backbone": _short(encoder.source.name),
            "revision": encoder.source.revision or "not recorded",
        }


def _describe_teacher(teacher: Identity | None) -> str:
    return f"{_short(teacher.name)} (weights {teacher.weights})" if teacher else ""


def _short(name: str | None) -> str:
    """Return a backbone's name as a card shows it: no folders of this machine."""
    return "built in memory" if name is None else Path(name).name if Path(name).is_absolute() else name
