"""rhobust conform."""

from typing import Any

from rhobust.commands.options import print_claim, print_table
from rhobust.commands.target import evaluation_command
from rhobust.evaluation import Conform
from rhobust.formatting import format_distance, format_number


def show(result: dict[str, Any]) -> None:
    """Print the certified coverage, the size of the sets and the rule that makes them."""
    found = result["summary"]["certificate"]
    limits = ["any" if one is None else format_number(one, 4, "up") for one in found["thresholds"]]
    rows = [
        [f"coverage within W2 {format_distance(found['eps'])}", format_number(found["coverage"], 3, "down"), "proved"],
        ["coverage without a shift", format_number(found["measured_coverage"], 3, "nearest"), "estimate"],
        ["classes per set", format_number(found["mean_size"], 3, "nearest"), "estimate"],
    ]
    print_table([f"prediction sets, {found['points']} calibration points", "", ""], rows)
    if all(one is None for one in found["thresholds"]):
        print("every class is in every set: these calibration points prove nothing smaller")
    else:
        print(f"a class is in the set if its {found['score']} score is at most {' '.join(limits)}")
    print_claim(found["statement"], result, found["points"])


COMMAND = evaluation_command(Conform, show)
