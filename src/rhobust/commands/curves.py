"""rhobust curves."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rhobust.certificates import Dtype
from rhobust.certificates.claim import LossName
from rhobust.commands.choice import ChoiceOptions
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings, record_document
from rhobust.evaluation import Ascent, curves_target
from rhobust.formatting import format_distance, format_number

AscentOptions = Annotated[Ascent, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class Curves:
    """Bracket the worst loss under W2 shifts: certified from above, attacked from below, and the paper's estimate."""

    choice: ChoiceOptions
    ascent: AscentOptions = Ascent()
    eps: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    """Increasing W2 distances; both bounds hold for all of them at once."""
    loss: LossName = "cross-entropy"
    """The loss of one noisy answer: cross-entropy clipped at --bound, or 0-1."""
    bound: float | None = None
    """Where the cross-entropy is clipped, a part of the claim; log(classes) where none is given."""
    draws: int = 20
    """Noise draws a point that value a loss."""
    alpha: float = 1e-3
    """Probability that the certified curve is false, and that the lower one is."""
    wrm: bool = False
    """Compute WRM's certificate of the base network too; it needs smooth activations (--activation elu)."""
    dtype: Dtype | None = None
    """Arithmetic of the network under noise, part of what is bracketed; the device's own where none is given."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        target = self.choice.target(self.common)
        record = curves_target(
            target,
            eps=self.eps,
            loss=self.loss,
            bound=self.bound,
            ascent=self.ascent,
            draws=self.draws,
            alpha=self.alpha,
            wrm=self.wrm,
            dtype=self.dtype,
            **self.choice.sample(self.common),
        )
        return record_document(record)

    def show(self, result: dict[str, Any]) -> None:
        summary = result["summary"]
        columns = {
            "eps": lambda at: format_distance(at["eps"]),
            "lower (attack)": lambda at: format_number(at["lower"], 3, "down"),
            "estimate (paper)": lambda at: format_number(at["estimate"], 3, "nearest"),
            "certified": lambda at: format_number(at["certified"], 3, "up"),
        }
        if "wrm" in summary["curve"][0]:
            columns["WRM, base network"] = lambda at: format_number(at["wrm"], 3, "up")
        print_table(list(columns), [[show(at) for show in columns.values()] for at in summary["curve"]])
        if summary["wrm"] is not None and summary["wrm"]["reason"] is not None:
            print(f"WRM: {summary['wrm']['reason']}")
        print(
            f"{result['settings']['loss']} of one noisy answer, {summary['points']} points; the estimate bounds nothing"
        )
        print(summary["statement"])
        print_warnings(summary.get("warnings", []))
        print(result["record"])


COMMAND = Curves
