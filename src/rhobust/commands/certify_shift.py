"""rhobust certify-shift."""

from typing import Any

from rhobust.commands.options import print_table
from rhobust.commands.target import evaluation_command
from rhobust.evaluation import CertifyShift
from rhobust.formatting import format_distance, format_number


def show(result: dict[str, Any]) -> None:
    """Print the certified curve over shift sizes, and the baselines from the same samples."""
    summary, settings = result["summary"], result["settings"]
    accuracy = settings["loss"] == "0-1"
    name, direction = ("certified_accuracy", "down") if accuracy else ("certified_loss", "up")
    columns = ["eps", name.replace("_", " ")]
    rows = [[format_distance(at["eps"]), format_number(at[name], 3, direction)] for at in summary["curve"]]
    for other in summary.get("beside", []):
        columns.append(f"{other['name']} {other['cost']} {other['classifier']}")
        for row, value in zip(rows, other["certified_accuracy"], strict=True):
            row.append(format_number(value, 3, "down"))
    print_table(columns, rows)
    measured = summary["accuracy_under_noise"] if accuracy else summary["loss_under_noise"]
    print(f"measured under noise {measured:.3f} ({summary['points']} points)")
    print(summary["statement"])


COMMAND = evaluation_command(CertifyShift, show, diagnosed=True)
