"""Pictures of results. The only file that imports matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK, LINE, RATE = "#1f2430", "#0072B2", "#E69F00"  # colour-blind safe (Okabe and Ito)


def draw_losses(steps: list[int], losses: list[float], rates: list[float], file: Path) -> None:
    """Draw a run's loss, as measured and smoothed, with the learning rate below."""
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(7, 4.4), height_ratios=(3, 1), sharex=True, layout="constrained"
    )
    top.plot(steps, losses, color=LINE, alpha=0.3, linewidth=1, label="each step")
    top.plot(steps, _smooth(losses), color=LINE, linewidth=2, label="smoothed")
    top.set_ylabel("loss")
    top.set_ylim(bottom=0)
    top.legend(frameon=False)
    bottom.plot(steps, rates, color=RATE, linewidth=2)
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("step")
    bottom.set_ylim(bottom=0)
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.tick_params(colors=INK)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _smooth(values: list[float], weight: float = 0.9) -> list[float]:
    """Return the running average, free of the pull to zero that its start would have."""
    smoothed, total, share = [], 0.0, 0.0
    for value in values:
        total = weight * total + (1 - weight) * value
        share = weight * share + (1 - weight)
        smoothed.append(total / share)
    return smoothed
