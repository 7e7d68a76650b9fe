"""rhobust curves."""

from typing import Any

from rhobust.commands.options import print_claim, print_table
from rhobust.commands.target import evaluation_command
from rhobust.evaluation import WorstCaseCurves
from rhobust.formatting import format_distance, format_number


def show(result: dict[str, Any]) -> None:
    """Print the bracket of the worst-case loss over shift sizes."""
    summary = result["summary"]
    columns = {
        "eps": lambda at: format_distance(at["eps"]),
        "lower (attack)": lambda at: format_number(at["lower"], 3, "down"),
        "estimate (paper)": lambda at: format_number(at["estimate"], 3, "nearest"),
        "certified": lambda at: format_number(at["certified"], 3, "up"),
    }
    if "wrm" in summary["curve"][0]:
        columns["WRM, base network"] = lambda at: format_number(at["wrm"], 3, "up")
    print_table(list(columns), [[shown(at) for shown in columns.values()] for at in summary["curve"]])
    if summary["wrm"] is not None and summary["wrm"]["reason"] is not None:
        print(f"WRM: {summary['wrm']['reason']}")
    loss = result["settings"]["loss"]
    print(f"{loss} of one noisy prediction, {summary['points']} points; the estimate is not a bound")
    print_claim(summary["statement"], result, summary["points"])


COMMAND = evaluation_command(WorstCaseCurves, show)
