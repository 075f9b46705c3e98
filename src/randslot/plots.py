"""Figures of results. The only file that imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("Agg")

# Colour-blind safe (Okabe and Ito); markers and dashes tell lines apart without colour too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS, DASHES = "osD^vPX", ("-", "--", "-.", ":", "-", "--", "-.")
INK = "#1f2430"
DOTTED: dict[str, Any] = {"linestyle": (0, (2, 2)), "linewidth": 1}
plt.rcParams.update({"svg.hashsalt": "randslot", "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK})


def draw_losses(steps: list[float], losses: list[float], rates: list[float], file: Path) -> None:
    """Draw a run's loss, raw and smoothed, with the learning rate below."""
    smoothed, total, share = [], 0.0, 0.0  # an exponential moving average with bias correction
    for loss in losses:
        total = 0.9 * total + 0.1 * loss
        share = 0.9 * share + 0.1
        smoothed.append(total / share)
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(7, 4.4), height_ratios=(3, 1), sharex=True, layout="constrained"
    )
    top.plot(steps, losses, color=COLOURS[0], alpha=0.3, linewidth=1, label="each step")
    top.plot(steps, smoothed, color=COLOURS[0], linewidth=2, label="smoothed")
    top.set_ylabel("loss")
    top.set_ylim(bottom=0)
    top.legend(frameon=False)
    bottom.plot(steps, rates, color=COLOURS[4], linewidth=2)
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("step")
    bottom.set_ylim(bottom=0)
    for axes in (top, bottom):
        _tidy(axes)
    _save(figure, file)


def draw_budgets(
    panels: dict[str, dict[str, list[float]]],
    starts: list[int],
    file: Path,
    spreads: dict[str, dict[str, list[float]]] | None = None,
) -> None:
    """Draw panels of scores by budget, one line per run. starts: first budget of each panel.

    spreads: by panel and run, drawn as bands.
    """
    figure, row = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 3), layout="constrained", squeeze=False)
    figure.get_layout_engine().set(wspace=0.06)  # room between a label and the panel before it
    for axes, start, (label, lines) in zip(row[0], starts, panels.items(), strict=True):
        for number, (name, values) in enumerate(lines.items()):
            axes.plot(range(start, len(values) + 1), values[start - 1 :], label=name, **_look(number))
            axes.set_xticks(range(start, len(values) + 1))
            if spread := (spreads or {}).get(label, {}).get(name):
                low = [value - by for value, by in zip(values, spread, strict=True)][start - 1 :]
                high = [value + by for value, by in zip(values, spread, strict=True)][start - 1 :]
                places, color = range(start, len(values) + 1), _look(number)["color"]
                axes.fill_between(places, low, high, color=color, alpha=0.12, linewidth=0)
        axes.set_xlabel(label)
        axes.set_ylabel("nDCG@5 (%)")
        axes.margins(y=0.12)
        _tidy(axes)
    _legend(figure, row[0][0])
    _save(figure, file)


Place = tuple[float, float]  # bytes per page, and nDCG@5 in percent


def draw_frontier(groups: Mapping[str, Sequence[Place]], frontiers: Sequence[Sequence[Place]], file: Path) -> None:
    """Draw groups of points by bytes per page (on a log scale) and nDCG@5 in percent.

    frontiers: Pareto-optimal points, smallest first, drawn as steps.
    """
    figure, axes = plt.subplots(figsize=(7.6, 3.4), layout="constrained")
    sizes = [size for points in groups.values() for size, _ in points]
    scores = [score for points in groups.values() for _, score in points]
    for number, best in enumerate(frontiers):
        across, up = [size for size, _ in best] + [2 * max(sizes)], [score for _, score in best] + [best[-1][1]]
        color = INK if len(frontiers) == 1 else _look(number)["color"]
        label = "the best for its bytes" if number == 0 else None
        axes.step(across, up, where="post", color=color, alpha=0.5, label=label, **DOTTED)
    for number, (name, points) in enumerate(groups.items()):
        look = _look(number) | {"markersize": 8 if len(points) == 1 else 4, "linestyle": "none"}
        axes.plot([size for size, _ in points], [score for _, score in points], label=name, **look)
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 2, 2 * max(sizes))
    axes.set_ylim(0, 1.15 * max(scores) + 1)
    axes.set_xlabel("bytes per page")
    axes.set_ylabel("nDCG@5 (%)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    _tidy(axes)
    _save(figure, file)


def draw_winners(panels: dict[str, list[list[float]]], file: Path) -> None:
    """Draw the shares (page readouts down, query readouts across) of each run on one scale from 0 to 100 %."""
    figure, row = plt.subplots(
        1, len(panels), figsize=(2.6 * len(panels) + 0.9, 3.1), layout="constrained", squeeze=False
    )
    for axes, (title, shares) in zip(row[0], panels.items(), strict=True):
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100, aspect="equal")
        for place, line in enumerate(shares):
            for column, share in enumerate(line):
                axes.text(column, place, f"{share:.0f}", ha="center", va="center", color="w" if share > 55 else INK)
        axes.set_xticks(range(len(shares[0])), [f"$q_{k + 1}$" for k in range(len(shares[0]))])
        axes.set_yticks(range(len(shares)), [f"$d_{k + 1}$" for k in range(len(shares))])
        axes.set_title(title, fontsize=9)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=row[0].tolist(), shrink=0.8)
    bar.set_label("share of wins (%)")
    bar.outline.set_visible(False)
    _save(figure, file)


def draw_readouts(
    full: dict[str, float],
    without: dict[str, dict[str, list[float]]],
    gains: dict[str, dict[str, float]],
    file: Path,
) -> None:
    """Draw scores without each readout of a side (dotted: with all), and the gain of joint use.

    without: by side and run. gains: by run and task; the last task has a fixed readout.
    """
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(3.3 * 3.4, 3.2), layout="constrained", width_ratios=(1, 1, 1.3)
    )
    figure.get_layout_engine().set(wspace=0.06)  # room between a label and the panel before it
    everything = list(full.values())
    for runs in without.values():
        for line in runs.values():
            everything += line
    room = 0.08 * (max(everything) - min(everything) + 1)
    for axes, (side, runs) in zip((left, middle), without.items(), strict=True):
        for number, (name, values) in enumerate(runs.items()):
            places = range(1, len(values) + 1)
            axes.plot(places, values, label=name, **_look(number))
            axes.axhline(full[name], color=_look(number)["color"], **DOTTED)
        axes.set_xticks(places, [f"$r_{k}$" for k in places])
        axes.set_xlabel(f"{side} readout removed")
        axes.set_ylabel("nDCG@5 (%)")
        axes.set_ylim(min(everything) - room, max(everything) + room)
        _tidy(axes)
    tasks = list(next(iter(gains.values())))
    step = 0.6 / len(gains)
    for number, by_task in enumerate(gains.values()):
        across = [place + step * (number - (len(gains) - 1) / 2) for place in range(len(tasks))]
        right.plot(across, list(by_task.values()), **(_look(number) | {"linestyle": "none"}))
    right.axvline(len(tasks) - 1.5, color=INK, linewidth=0.8, alpha=0.4)
    right.set_xticks(range(len(tasks)), tasks, rotation=30, ha="right")
    right.get_xticklabels()[-1].set_fontweight("bold")
    right.axhline(0, color=INK, linewidth=0.8)
    right.set_ylabel("gain of joint use (points)")
    right.set_xlim(-0.6, len(tasks) - 0.4)
    _tidy(right)
    left.plot([], [], color=INK, label="dotted: with all readouts", **DOTTED)
    _legend(figure, left)
    _save(figure, file)


def _look(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.6,
        "markersize": 5,
    }


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.tick_params(colors=INK)


def _legend(figure: Any, axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(3, len(names)), frameon=False, fontsize=9)


def _save(figure: Any, file: Path) -> None:
    """Save a figure without a date, so that files are reproducible."""
    figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    if file.suffix == ".svg":
        figure.savefig(file.with_suffix(".png"), dpi=150)
    plt.close(figure)
