"""rhobust certify-shift."""

from typing import Any

from rhobust.commands.options import print_claim, print_table
from rhobust.commands.target import TargetOptions, evaluation_command
from rhobust.evaluation import CertifyShift
from rhobust.formatting import format_distance, format_number
from rhobust.measurements.proved import shift_counts, shift_proof
from rhobust.records import Record


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
    if "one_vote" in result:
        columns.append("with one noisy vote")
        for row, value in zip(rows, result["one_vote"], strict=True):
            row.append(format_number(value, 3, "down"))
    print_table(columns, rows)
    _show_beyond(summary, result)
    measured = summary["accuracy_under_noise"] if accuracy else summary["loss_under_noise"]
    print(f"measured under noise {measured:.3f} ({summary['points']} points)")
    print_claim(summary["statement"], result, summary["points"])


def _show_beyond(summary: dict[str, Any], result: dict[str, Any]) -> None:
    """Print the surfaces over gamma, groups and their shares, and the wrong answers of a classifier that abstains."""
    single, plural = ("group", "groups") if result["settings"].get("groups") else ("class", "classes")
    for part, key, name in (
        ("surface", "gamma", "subpopulations, gamma"),
        ("groups", "group", single),
        ("mixtures", "tv", f"shares of {plural} within"),
    ):
        points = summary.get(part)
        if not points:
            continue
        sizes = list(dict.fromkeys(point["eps"] for point in points))
        found = {(point[key], point["eps"]): point["certified_accuracy"] for point in points}
        rows = [
            [
                str(one) if key == "group" else format_distance(one),
                *(format_number(found[one, eps], 3, "down") for eps in sizes),
            ]
            for one in dict.fromkeys(point[key] for point in points)
        ]
        print_table([name, *(f"eps {format_distance(eps)}" for eps in sizes)], rows)
        worst = min((point for point in points if point["eps"] == sizes[len(sizes) // 2]), key=_accuracy)
        print_claim(worst["statement"], result, summary["points"])
    if points := summary.get("abstaining"):
        rows = [[format_distance(point["eps"]), format_number(point["wrong_answers"], 3, "up")] for point in points]
        print_table(["eps", "wrong answers at most"], rows)
        if (right := points[0]["right_answers"]) is not None:
            print(f"right answers without a shift {format_number(right, 3, 'nearest')} (estimate)")
        print_claim(points[len(points) // 2]["statement"], result, summary["points"])


def _accuracy(point: dict[str, Any]) -> float:
    return point["certified_accuracy"]


def with_one_vote(record: Record, _: TargetOptions) -> dict[str, Any]:
    """What the same counts certify for one noisy vote, of other classifiers: what several votes cost or gain.

    It is the same event about the counts, so both curves hold together with probability 1 - alpha.
    """
    settings, summary = record.settings, record.summary
    if summary is None or settings.get("classifier", "randomised") == "randomised" or settings.get("way") != "majorant":
        return {}
    proof = shift_proof({**settings, "classifier": "randomised"}, len(record.rows), summary["dimension"])
    return {"one_vote": list(proof.certify(shift_counts(record.rows, settings), settings["eps"]).certified_accuracy)}


COMMAND = evaluation_command(CertifyShift, show, after=with_one_vote, diagnosed=True)
