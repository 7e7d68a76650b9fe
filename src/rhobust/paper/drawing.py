"""Figures in matplotlib: one look for all, safe for the colour-blind, and the same bytes for the same numbers."""

import io
import math
import textwrap
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
GREY = "#555555"
DASHES: dict[str, Any] = {"solid": "-", "dashed": (0, (5, 2)), "dotted": (0, (1, 1.5))}
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
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
MARKED = 30
"""Points up to which a curve shows them: more would hide the line."""
PANEL, LINE = (3.1, 2.6), 0.2
"""Width and height of a panel, and the height of a line of text, in inches."""


def draw(document: dict[str, Any]) -> "Figure":
    """The figure of a document that `filling.fill` made."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('figures need matplotlib: install "rhobust[figures]"') from None
    with mpl.rc_context(STYLE):
        if "names" in document:
            return _heat_map(document, Figure(figsize=(4.8, 4.0), layout="constrained"))
        panels = document["panels"]
        columns = min(document["columns"], len(panels))
        rows = math.ceil(len(panels) / columns)
        looks = _looks(panels)
        handles = _legend(panels, looks)
        width = PANEL[0] * columns
        across = max(1, int(width / (0.45 + 0.05 * max(len(handle.get_label()) for handle in handles))))
        height = PANEL[1] * rows + LINE * (2 + math.ceil(len(handles) / across))
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for ax, panel in zip(axes, panels, strict=False):
            _panel(ax, panel, looks)
        for ax in axes[len(panels) :]:
            ax.remove()
        _head(figure, document)
        figure.legend(handles=handles, loc="outside lower center", ncols=across, frameon=False)
        return figure


def to_bytes(figure: "Figure", kind: Literal["svg", "pdf", "png"]) -> bytes:
    """The figure as a file; no date is written, so equal figures are equal bytes."""
    import matplotlib as mpl

    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=150)
    return buffer.getvalue()


def _head(figure: "Figure", document: dict[str, Any]) -> None:
    """The title, and below it what the figure is not: stand-ins and what was left out or chosen by us."""
    notes = textwrap.fill(" ".join(document["notes"]), width=int(18 * figure.get_figwidth()))
    figure.suptitle("\n".join([document["title"], notes]) if notes else document["title"], fontsize=8)


def _looks(panels: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Colour and marker of what the curves' colours stand for, the same in all panels."""
    names = list(dict.fromkeys(curve["colour"] for panel in panels for curve in panel["curves"]))
    others = [name for name in names if name not in METHODS]
    return {name: METHODS.get(name) or (SEQUENCE[others.index(name) % len(SEQUENCE)], "") for name in names}


def _legend(panels: list[dict[str, Any]], looks: dict[str, tuple[str, str]]) -> list[Any]:
    """A line for each colour, then one in grey for each dash or marker that has a meaning of its own."""
    from matplotlib.lines import Line2D

    curves = [curve for panel in panels for curve in panel["curves"]]
    marked = all(len(curve.get("x", ())) <= MARKED for curve in curves)
    dash = {curve["colour"]: "solid" if curve["kind"] else curve["dash"] for curve in curves}
    handles = [
        Line2D([], [], color=colour, marker=marker if marked else "", linestyle=DASHES[dash[name]], label=name)
        for name, (colour, marker) in looks.items()
    ]
    for kind, curve in {curve["kind"]: curve for curve in curves if curve["kind"]}.items():
        single = len(curve.get("x", "  ")) == 1
        marker, line = (METHODS[kind][1], "") if single else ("", DASHES[curve["dash"]])
        handles.append(Line2D([], [], color=GREY, marker=marker, linestyle=line, label=kind))
    return handles


def _panel(ax: "Axes", panel: dict[str, Any], looks: dict[str, tuple[str, str]]) -> None:
    shares = True
    for curve in panel["curves"]:
        if "fault" in curve:
            continue
        colour, marker = looks[curve["colour"]]
        x, y, low, high = (curve[key] for key in ("x", "y", "low", "high"))
        if len(x) == 1:
            margins = [[y[0] - low[0]], [high[0] - y[0]]]
            marker = METHODS[curve["kind"]][1]
            ax.errorbar(x, y, yerr=margins, color=colour, marker=marker, markersize=5, elinewidth=0.6)
        else:
            ax.plot(x, y, linestyle=DASHES[curve["dash"]], color=colour, marker=marker if len(x) <= MARKED else "")
            if low != high:
                ax.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
        shares &= all(0 <= value <= 1 for value in y)
    ax.set(title=panel["title"], xlabel=panel["x"], ylabel=panel["y"])
    if not ax.lines:
        ax.text(0.5, 0.5, "missing", ha="center", va="center", transform=ax.transAxes)
    if shares:
        ax.set_ylim(-0.02, 1.02)


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
    _head(figure, document)
    figure.colorbar(image, ax=ax, shrink=0.85, label="accuracy")
    return figure
