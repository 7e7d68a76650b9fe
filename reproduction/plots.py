"""Figures in matplotlib: one look for all, safe for the colour-blind, and the same bytes for the same numbers."""

import io
import math
import textwrap
from typing import TYPE_CHECKING, Any, Literal

from rhobust.formatting import format_interval, format_number

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
    "CAT-RS": (PINK, "P"),
    "Sun et al.": (BLACK, "X"),
}
"""Colour and marker of a method, the same in every figure."""
SEQUENCE = (BLUE, RED, GREEN, ORANGE)
"""Colours of what is not a method: gammas, eps, kinds of bound."""
GREY = "#555555"
DASHES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (5, 2)),
    "dotted": (0, (1, 1.5)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
}
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
"""Points up to which a curve shows each of them."""
BETWEEN = 16
"""Points from one marker to the next on a curve that has more; each curve starts elsewhere, so none hides another."""
PALE = 0.55
"""Opacity of bars that others report."""
PANEL = (3.1, 2.6)
"""Width and height of a panel in inches."""
TITLE, NOTE, KEYS = 0.3, 0.15, 0.2
"""Height of the title, of a line of notes and of a row of the legend, in inches."""
MARGIN = 0.08
"""Inches from the title and the notes to the edge."""


def draw(document: dict[str, Any]) -> "Figure":
    """The figure of a document that `documents.fill` made."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise ValueError("figures need matplotlib: python -m pip install '.[plots]' in the checkout") from None
    with mpl.rc_context(STYLE):
        return _heat_map(document) if "names" in document else _panels(document)


def _panels(document: dict[str, Any]) -> "Figure":
    panels = document["panels"]
    columns = min(document["columns"], len(panels))
    rows = math.ceil(len(panels) / columns)
    width = PANEL[0] * columns
    looks = _looks(panels)
    handles, across = _arranged(_legend(panels, looks), width)
    height = PANEL[1] * rows + KEYS * math.ceil(len(handles) / across)
    figure = _figure(document, width, height, _interval_note(panels), _missing_note(document))
    # Points are compared across panels; curves have their own radii, but the same heights where the axis says so.
    points = all(len(curve.get("x", " ")) == 1 for panel in panels for curve in panel["curves"])
    alike = len({panel["y"] for panel in panels}) == 1
    grid = figure.subplots(rows, columns, squeeze=False, sharex=points, sharey=alike)
    for ax, panel in zip(grid.flat, panels, strict=False):
        _panel(ax, panel, looks)
        if alike and ax not in grid[:, 0]:
            ax.set_ylabel("")
    for ax in list(grid.flat)[len(panels) :]:
        ax.remove()
    if points:
        _fit(list(zip(grid.flat, panels, strict=False)), alike=alike)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=across, frameon=False, columnspacing=1.4, handlelength=1.9
    )
    return figure


def _fit(drawn: "list[tuple[Axes, dict[str, Any]]]", *, alike: bool) -> None:
    """Fit the axes to the error bars, alike where panels share a height."""
    for ax, panel in drawn:
        panels = [other for _, other in drawn] if alike else [panel]
        bars = [curve for other in panels for curve in other["curves"] if "fault" not in curve]
        if bars:
            low, high = min(curve["low"][0] for curve in bars), max(curve["high"][0] for curve in bars)
            ax.set_ylim(max(-0.02, low - 0.03), high + 0.03)


def to_bytes(figure: "Figure", kind: Literal["svg", "pdf", "png"]) -> bytes:
    """The figure as a file; no date is written, so equal figures are equal bytes."""
    import matplotlib as mpl

    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[kind]
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=150)
    return buffer.getvalue()


def _figure(document: dict[str, Any], width: float, height: float, *more: str) -> "Figure":
    """An empty figure: the title on top, and below it notes on surrogate data sets and on what was left out or chosen.

    Sizes are in inches; `height` is below the title and the notes.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    notes = [*document["notes"], *filter(None, more)]
    lines = [line for note in notes for line in textwrap.wrap(note, width=int(17 * width))]
    head = TITLE + NOTE * len(lines)
    whole = height + head
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, height / whole), w_pad=0.06, h_pad=0.06)
    figure = Figure(figsize=(width, whole), layout=layout)
    left = MARGIN / width
    figure.text(left, 1 - MARGIN / whole, document["title"], va="top", fontsize=9.5, fontweight="bold")
    top = 1 - TITLE / whole
    figure.text(left, top, "\n".join(lines), va="top", fontsize=7, color=GREY, linespacing=1.3)
    return figure


def _interval_note(panels: list[dict[str, Any]]) -> str:
    """What the bands and bars are, if there are any."""
    shown = [
        curve
        for panel in panels
        for curve in panel["curves"]
        if "fault" not in curve and not curve.get("reported") and curve["low"] != curve["high"]
    ]
    if not shown:
        return ""
    what = "Bars" if all(len(curve["x"]) == 1 for curve in shown) else "Bands"
    what = "Error bars" if any("bars" in panel for panel in panels) else what
    counts = sorted({curve["n"] for curve in shown})
    images = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{what}: 95% intervals over {images} test images; one training."


def _missing_note(document: dict[str, Any]) -> str:
    """How many curves are missing: a figure with a gap must not look complete."""
    curves = [curve for panel in document["panels"] for curve in panel["curves"]]
    missing = sum("fault" in curve for curve in curves)
    return f"Missing: {missing} of {len(curves)} curves; {document['name']}.json says why." if missing else ""


def _arranged(handles: list[Any], width: float) -> tuple[list[Any], int]:
    """The legend's entries in rows that fill the width evenly, and how many are in a row.

    matplotlib fills columns first; the entries are reordered so that they read row by row.
    """
    across = 1
    widths = [0.42 + 0.06 * len(handle.get_label()) for handle in handles]
    for rows in range(1, len(handles) + 1):
        across = math.ceil(len(handles) / rows)
        if sum(max(widths[column::across]) for column in range(across)) <= width - 2 * MARGIN:
            break
    return [handle for column in range(across) for handle in handles[column::across]], across


def _looks(panels: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Colour and marker of what the curves' colours denote, the same in all panels."""
    names = list(dict.fromkeys(curve["colour"] for panel in panels for curve in panel["curves"]))
    others = [name for name in names if name not in METHODS]
    return {name: METHODS.get(name) or (SEQUENCE[others.index(name) % len(SEQUENCE)], "") for name in names}


def _legend(panels: list[dict[str, Any]], looks: dict[str, tuple[str, str]]) -> list[Any]:
    """A line or a bar for each colour, then a line in grey for each dash or marker that has a meaning of its own."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if any("bars" in panel for panel in panels):
        reported = {curve["colour"]: bool(curve.get("reported")) for panel in panels for curve in panel["curves"]}
        return [
            Patch(color=colour, alpha=PALE if reported[name] else 1, label=name) for name, (colour, _) in looks.items()
        ]
    curves = [curve for panel in panels for curve in panel["curves"] if "fault" not in curve]
    lines = {curve["colour"]: DASHES["solid" if curve["kind"] else curve["dash"]] for curve in curves}
    # Points without a kind are hollow markers of their colour; joined ones have their line.
    points = {curve["colour"] for curve in curves if len(curve["x"]) == 1 and not curve["kind"]}
    lines |= {curve["colour"]: "" for curve in curves if curve["colour"] in points and not curve["label"]}
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle=lines[name], label=name)
        for name, (colour, marker) in looks.items()
        if name in lines
    ]
    for handle in handles:
        if handle.get_label() in points:
            handle.set(markersize=5, markerfacecolor="none", linewidth=0.8)
    for kind, curve in {curve["kind"]: curve for curve in curves if curve["kind"]}.items():
        single = len(curve["x"]) == 1
        marker, line = (METHODS[kind][1], "") if single else ("", DASHES[curve["dash"]])
        handles.append(Line2D([], [], color=GREY, marker=marker, mfc="none", linestyle=line, label=kind))
    return handles


def _panel(ax: "Axes", panel: dict[str, Any], looks: dict[str, tuple[str, str]]) -> None:
    curves = [curve for curve in panel["curves"] if "fault" not in curve]
    if "bars" in panel:
        _bars(ax, panel, looks)
        return
    # Many bands on top of each other must not hide the lines.
    shade = min(0.15, 0.5 / max(1, len(curves)))
    for place, curve in enumerate(curves):
        colour, marker = looks[curve["colour"]]
        x, y, low, high = (curve[key] for key in ("x", "y", "low", "high"))
        if len(x) == 1:
            _point(ax, curve, colour, METHODS[curve["kind"]][1] if curve["kind"] else marker)
            continue
        # Steps of certified curves go without markers next to measured curves.
        bare = curve["falling"] and curve["kind"]
        line = {"color": colour, "linestyle": DASHES[curve["dash"]], "marker": "" if bare else marker}
        marks = 1 if len(x) <= MARKED else (3 * place % BETWEEN, BETWEEN)
        # A non-increasing share: between two points it is at least its value at the next.
        step = "pre" if curve["falling"] else None
        ax.plot(x, y, markevery=marks, drawstyle="steps-pre" if step else "default", **line)
        if low != high:
            ax.fill_between(x, low, high, step=step, color=colour, alpha=shade, linewidth=0)
    for name, (colour, _) in looks.items():
        joined = [curve for curve in curves if curve["label"] and curve["colour"] == name]
        if joined:
            ax.plot(*([curve[axis][0] for curve in joined] for axis in "xy"), color=colour, linewidth=0.8, zorder=1)
    ax.set(title=panel["title"], xlabel=panel["x"], ylabel=panel["y"])
    if not curves:
        ax.text(0.5, 0.5, "missing", ha="center", va="center", transform=ax.transAxes)
    if not panel.get("zoom") and all(0 <= value <= 1 for curve in curves for value in curve["y"]):
        ax.set_ylim(-0.02, 1.02)


def _bars(ax: "Axes", panel: dict[str, Any], looks: dict[str, tuple[str, str]]) -> None:
    """A group of bars for each of the panel's bars, one of each curve; those that others report are pale."""
    curves = [curve for curve in panel["curves"] if "fault" not in curve]
    width = 0.84 / max(1, len(curves))
    for place, curve in enumerate(curves):
        middle = [group + (place - (len(curves) - 1) / 2) * width for group in range(len(panel["bars"]))]
        y, low, high = (curve[key] for key in ("y", "low", "high"))
        margins = [[value - end for value, end in zip(y, low, strict=True)]]
        margins.append([end - value for value, end in zip(y, high, strict=True)])
        style: dict[str, Any] = (
            {"alpha": PALE} if curve.get("reported") else {"yerr": margins, "error_kw": {"elinewidth": 0.6}}
        )
        ax.bar(middle, y, width, color=looks[curve["colour"]][0], **style)
    ax.grid(visible=False, axis="x")
    ax.set_xticks(range(len(panel["bars"])), panel["bars"], fontsize=7, rotation=45)
    ax.set(title=panel["title"], xlabel=panel["x"], ylabel=panel["y"])


def _point(ax: "Axes", curve: dict[str, Any], colour: str, marker: str) -> None:
    """A single point with its intervals and its label."""
    x, y = curve["x"][0], curve["y"][0]
    margins: dict[str, Any] = {"yerr": [[y - curve["low"][0]], [curve["high"][0] - y]]}
    if curve.get("left"):
        margins["xerr"] = [[x - curve["left"][0]], [curve["right"][0] - x]]
    # Hollow: points of several eps can coincide.
    ax.errorbar([x], [y], **margins, color=colour, marker=marker, markersize=5, mfc="none", elinewidth=0.6)
    if curve["label"]:
        ax.annotate(curve["label"], (x, y), (5, 4), textcoords="offset points", color=colour, fontsize=7)


def _heat_map(document: dict[str, Any]) -> "Figure":
    names = document["names"]
    # A cell must hold an interval, and a column the parts of its name below each other.
    width, height = max(5.8, 2.8 + 0.95 * len(names)), max(4.2, 1.6 + 0.75 * len(names))
    figure = _figure(document, width, height, "In brackets: the 95% interval.")
    ax = figure.subplots()
    ax.grid(visible=False)
    values = [[cell.get("value", math.nan) for cell in row] for row in document["cells"]]
    image = ax.imshow(values, cmap="cividis", vmin=0, vmax=1)
    places = range(len(names))
    for row in places:
        for column in places:
            cell = document["cells"][row][column]
            style = {"ha": "center", "va": "center", "color": "white" if cell.get("value", 1) < 0.55 else "black"}
            ax.text(column, row, _share(cell), **style)
            ax.text(column, row + 0.22, _interval(cell), fontsize=6.5, **style)
    ax.set_xticks(places, [name.replace(", ", ",\n") for name in names])
    ax.set_yticks(places, names)
    ax.set(xlabel=document["x"], ylabel=document["y"])
    figure.colorbar(image, ax=ax, shrink=0.85, label="accuracy")
    return figure


def _share(cell: dict[str, Any]) -> str:
    return "missing" if "fault" in cell else format_number(cell["value"], 3, "nearest")


def _interval(cell: dict[str, Any]) -> str:
    """Rounded outward."""
    if "fault" in cell:
        return ""
    return f"({format_interval(cell['low'], cell['high'], 2)})"
