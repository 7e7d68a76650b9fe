"""What was found about one network, as numbers, a data frame, a plot, a table in a notebook and a page."""

import html
import importlib.util
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhobust.assessment.diagnosis import Finding
from rhobust.formatting import format_distance, format_number, format_percent
from rhobust.measurements import (
    AVERAGE_RADIUS,
    BASE,
    CERTIFIED,
    ROBUST,
    SHIFT,
    SHIFT_ATTACK,
    SUBPOPULATION,
    UNDER_NOISE,
    Measurement,
    contradictions,
    measurements,
)
from rhobust.records import Record
from rhobust.report import write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Assessment:
    """What was found about one network: records on disk, what they add up to, and what explains it.

    Every number comes from the records, which `rhobust report`, `compare` and `audit` read too.
    """

    folder: Path
    """Folder of the records."""
    records: tuple[Record, ...] = field(repr=False)
    """One record per evaluation."""
    findings: tuple[Finding, ...]
    """What explains low numbers; empty where nothing needs explaining."""
    name: str
    """How the network is called."""
    sigma: float
    """The smoothing noise."""
    page: Path | None = None
    """The report, if one was written."""

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Every number with its interval, number of images and status."""
        return tuple(one for found in self._found.values() for one in found)

    @cached_property
    def _found(self) -> dict[str, list[Measurement]]:
        """The measurements of each record by its name; to prove them from the rows takes a moment."""
        return {record.path.stem: measurements(record) for record in self.records}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons not to trust numbers, each once, after the evaluations that it is about."""
        about: dict[str, list[str]] = {}
        for name, record in zip(self._found, self.records, strict=True):
            for warning in (record.summary or {}).get("warnings", []):
                about.setdefault(warning, []).append(name.rsplit("-", 1)[0])
        return tuple(f"{', '.join(kinds)}: {warning}" for warning, kinds in about.items())

    @cached_property
    def contradictions(self) -> tuple[str, ...]:
        """Numbers that cannot both be right, a sentence for each pair."""
        return tuple(contradictions(self.records, list(self._found.values())))

    def report(self, out: Path | str | None = None, *, title: str | None = None) -> Path:
        """Write the page, one HTML file.

        Args:
            out: The file; default: report.html in the folder.
            title: The page's heading; default: the network's name.
        """
        path = self.folder / "report.html" if out is None else Path(out)
        return write_report([self.folder], path, title=title or f"Robustness of {self.name}").path

    def rows(self) -> list[dict[str, Any]]:
        """The measurements as dictionaries."""
        return [
            {
                "evaluation": name.rsplit("-", 1)[0],
                "quantity": one.quantity,
                "at": one.at,
                "value": one.value,
                "low": one.low,
                "high": one.high,
                "n": one.n,
                "status": one.status,
            }
            for name, found in self._found.items()
            for one in found
        ]

    def to_frame(self) -> Any:
        """The measurements as a data frame: of pandas if it is installed, else of polars."""
        for package in ("pandas", "polars"):
            if importlib.util.find_spec(package) is not None:
                return importlib.import_module(package).DataFrame(self.rows())
        raise ValueError("a data frame needs pandas or polars, and neither is installed; rows() needs nothing")

    def plot(self) -> "Figure":
        """Accuracy against the radius, certified and under attack; needs matplotlib.

        What is certified is a staircase: between two radii it is what is proved at the larger one. What was measured is
        a line, with its 95% intervals.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ValueError("a plot needs matplotlib: python -m pip install '.[plots]' in the checkout") from None
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        for label, quantity, kind in (
            ("certified, smoothed classifier (proved)", CERTIFIED, "certify"),
            ("under EOT, smoothed classifier (upper bound)", ROBUST, "attack-eot"),
            ("under PGD, base network (upper bound)", ROBUST, "attack-pgd"),
        ):
            points = [one for one in self._of(kind) if one.quantity == quantity and one.at is not None]
            if points:
                at = [float(one.at or 0.0) for one in points]
                # Between two radii only what holds at the larger one is proved; an attack is not run there.
                style: Any = "steps-pre" if quantity == CERTIFIED else "default"
                (drawn,) = axes.plot(at, [one.value for one in points], marker="o", label=label, drawstyle=style)
                low, high = ([getattr(one, end) for one in points] for end in ("low", "high"))
                if quantity == ROBUST and all(value is not None for value in (*low, *high)):
                    axes.fill_between(at, low, high, color=drawn.get_color(), alpha=0.15)
        axes.set(xlabel="L2 radius", ylabel="accuracy", ylim=(0, 1.02), title=f"{self.name}, sigma {self.sigma:g}")
        axes.legend()
        return figure

    def headline(self) -> list[tuple[str, str, str, str]]:
        """The main numbers, each with its classifier, the images it is from, and its status.

        Numbers from different images differ by chance too, so a line of an attack also says how many of its own images
        are right before it.
        """
        radius = self.sigma
        wanted = [
            ("base network, clean", "accuracy", BASE, None),
            (f"base network, PGD at {format_distance(radius)}", "attack-pgd", ROBUST, radius),
            ("one noisy prediction", "accuracy", UNDER_NOISE, 0.0),
            (f"smoothed classifier, EOT at {format_distance(radius)}", "attack-eot", ROBUST, radius),
            ("smoothed classifier, certified at 0", "certify", CERTIFIED, 0.0),
            (f"smoothed classifier, certified at {format_distance(radius)}", "certify", CERTIFIED, radius),
            ("average certified radius", "certify", AVERAGE_RADIUS, None),
            (f"every distribution within W2 {format_distance(radius * 0.25)}", "certify-shift", SHIFT, radius * 0.25),
            (
                f"W2 attack on the distribution, {format_distance(radius * 0.25)}",
                "attack-shift",
                SHIFT_ATTACK,
                radius * 0.25,
            ),
        ]
        found = []
        for label, kind, quantity, at in wanted:
            for one in self._of(kind):
                if one.quantity == quantity and (at is None or one.at == at):
                    named = f"{label}, {_voting(one)}" if quantity == SHIFT else label
                    before = next((it for it in self._of(kind) if it.quantity == ROBUST and it.at == 0), None)
                    found.append(_line(named, one, before if quantity == ROBUST else None))
                    break
        for one in self._of("certify-shift"):
            if one.quantity == SUBPOPULATION and one.at == radius * 0.25 and one.detail["gamma"] > 1:
                share = format_percent(1 / one.detail["gamma"], "up")
                label = f"the same for every {share}% of the data"
                found.append(_line(label, one))
        return found

    def _of(self, kind: str) -> list[Measurement]:
        return [one for name, found in self._found.items() if name.rsplit("-", 1)[0].startswith(kind) for one in found]

    def __str__(self) -> str:
        rows = self.headline()
        width, wide = (max((len(row[place]) for row in rows), default=0) for place in (0, 2))
        lines = [f"{self.name}, sigma {self.sigma:g}"]
        lines += [
            f"  {label:<{width}}  {value:>6}  {images:>{wide}}  {status}" for label, value, images, status in rows
        ]
        lines += [f"{title}: {text}" for title, text in self._notes()]
        return "\n".join([*lines, str(self.page or self.folder)])

    def _notes(self) -> list[tuple[str, str]]:
        """What is said below the numbers, each with its title."""
        said = {"Diagnosis": self.findings, "Warning": self.warnings, "Contradiction": self.contradictions}
        return [(title, str(text)) for title, texts in said.items() for text in texts]

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{html.escape(label)}</td><td style='text-align:right'>{value}</td>"
            f"<td style='text-align:right'>{images}</td><td>{status}</td></tr>"
            for label, value, images, status in self.headline()
        )
        notes = "".join(f"<p><b>{title}.</b> {html.escape(text)}</p>" for title, text in self._notes())
        where = "" if self.page is None else f"<p>Report: {html.escape(str(self.page))}</p>"
        return (
            f"<h4>{html.escape(self.name)}, &sigma; {self.sigma:g}</h4><table><tr><th>what</th><th>accuracy</th>"
            f"<th>from</th><th>status</th></tr>{cells}</table>{notes}{where}"
        )


def _line(label: str, one: Measurement, before: Measurement | None = None) -> tuple[str, str, str, str]:
    """What a number is, the number, the images it is from (and how many are right before an attack), and its status."""
    images = f"{one.n:,} image{'s' * (one.n != 1)}"
    if before is not None:
        images = f"{format_number(before.value, 3, before.direction)} before attack, {images}"
    return label, format_number(one.value, 3, one.direction), images, one.status


def _voting(one: Measurement) -> str:
    """The classifier of a certificate for distributions, in a few words."""
    words = {"randomised": "one noisy vote", "k-vote": f"majority of {one.detail.get('votes')} noisy votes"}
    return words.get(one.detail["classifier"], "most probable class under noise")
