"""Figures in matplotlib: one look for all, safe for the colour-blind, and the same bytes for the same numbers."""

import io
import math
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73"),
    *("#0072B2", "#D55E00", "#CC79A7"),
)
"""The palette of Okabe and Ito, without its yellow, which print loses."""
METHODS = {
    "NAL": (RED, "o"),
    "NAL, damped": (BLUE, "s"),
    "SmoothAdv": (GREEN, "^"),
    "Smoothing": (ORANGE, "D"),
    "STN": (SKY, "v"),
    "PGD": (PINK, "P"),
    "TRADES": (BLACK, "X"),
    "WRM": (BLACK, "*"),
    "Undefended": (BLACK, "^"),
}
"""Colour and marker of a method, the same in every figure."""
SEQUENCE = (BLUE, RED, GREEN, ORANGE)
"""Colours of what is not a method: gammas, eps, kinds of bound."""
DASHES = {"solid": "-", "dashed": (0, (5, 2)), "dotted": (0, (1, 1.5)), "none": ""}
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 6.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "svg.hashsalt": "rhobust",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
PANEL = (3.1, 2.7)
"""Width and height of a panel in inches."""


def draw(document: dict[str, Any]) -> "Figure":
    """The figure of a document that `filling.fill` made."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('figures need matplotlib: install "rhobust[figures]"') from None
    with mpl.rc_context(STYLE):
        if "names" in document:
            return _heat_map(document, Figure(figsize=(4.6, 4.0), layout="constrained"))
        columns = min(document["columns"], len(document["panels"]))
        rows = math.ceil(len(document["panels"]) / columns)
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for ax, panel in zip(axes, document["panels"], strict=False):
            _panel(ax, panel)
        for ax in list(axes)[len(document["panels"]) :]:
            ax.remove()
        figure.suptitle(document["title"], fontsize=9)
        return figure


def to_bytes(figure: "Figure", kind: Literal["svg", "pdf", "png"]) -> bytes:
    """The figure as a file; no date is written, so equal figures are equal bytes."""
    import matplotlib as mpl

    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=150)
    return buffer.getvalue()


def _panel(ax: "Axes", panel: dict[str, Any]) -> None:
    others = list(dict.fromkeys(curve["colour"] for curve in panel["curves"] if curve["colour"] not in METHODS))
    shares = True
    for curve in panel["curves"]:
        if "fault" in curve:
            continue
        colour, marker = METHODS.get(curve["colour"], (None, ""))
        if colour is None:
            colour = SEQUENCE[others.index(curve["colour"]) % len(SEQUENCE)]
        points = len(curve["x"]) == 1
        if points:
            marker = METHODS[curve["label"].rpartition(", eps")[0]][1]
        many = len(curve["x"]) > 30
        ax.plot(
            curve["x"],
            curve["y"],
            linestyle=DASHES[curve["dash"]],
            color=colour,
            marker="" if many else marker,
            label=curve["label"],
            markersize=5 if points else None,
        )
        if points:
            low, high = curve["y"][0] - curve["low"][0], curve["high"][0] - curve["y"][0]
            ax.errorbar(curve["x"], curve["y"], yerr=[[low], [high]], color=colour, linewidth=0.7)
        elif curve["low"] != curve["y"]:
            ax.fill_between(curve["x"], curve["low"], curve["high"], color=colour, alpha=0.12, linewidth=0)
        shares &= all(0 <= value <= 1 for value in curve["y"])
    ax.set(title=panel["title"], xlabel=panel["x"], ylabel=panel["y"])
    if shares:
        ax.set_ylim(-0.02, 1.02)
    ax.legend(frameon=False, handlelength=2.6)


def _heat_map(document: dict[str, Any], figure: "Figure") -> "Figure":
    ax = figure.subplots()
    ax.grid(visible=False)
    values = [[cell.get("value", math.nan) for cell in row] for row in document["cells"]]
    image = ax.imshow(values, cmap="cividis", vmin=0, vmax=1)
    places = range(len(document["names"]))
    for row in places:
        for column in places:
            value = values[row][column]
            text = "missing" if math.isnan(value) else f"{value:.3f}"
            ax.text(column, row, text, ha="center", va="center", color="white" if value < 0.55 else "black")
    ax.set_xticks(places, document["names"], rotation=20, ha="right")
    ax.set_yticks(places, document["names"])
    ax.set(xlabel=document["x"], ylabel=document["y"])
    ax.set_title(document["title"], fontsize=8)
    figure.colorbar(image, ax=ax, shrink=0.85, label="accuracy")
    return figure
