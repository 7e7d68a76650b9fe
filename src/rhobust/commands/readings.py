"""rhobust readings."""

from dataclasses import dataclass
from typing import Any

from rhobust.commands.choice import ChoiceOptions
from rhobust.commands.options import Common, CommonOptions, print_table, record_document
from rhobust.evaluation import paper_readings


@dataclass(frozen=True)
class Readings:
    """Attack a run under every reading of the paper's protocol, to find the one that a printed row came from."""

    choice: ChoiceOptions
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Increasing L2 radii in units of the [0, 1] pixel range."""
    steps: tuple[int, ...] = (20,)
    """Gradients taken: 20 in the paper, 100 in its supplement; give both to try both."""
    votes: int = 100
    """Noise draws of the smoothed answer; one draw is tried as well."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        target = self.choice.target(self.common)
        records = paper_readings(
            target, self.radii, steps=self.steps, votes=self.votes, **self.choice.sample(self.common)
        )
        return {"readings": [record_document(record) for record in records]}

    def show(self, result: dict[str, Any]) -> None:
        rows = []
        for reading in result["readings"]:
            settings, attack = reading["settings"], reading["settings"]["attack"]
            answer = "base" if settings["votes"] is None else f"{settings['votes']} noisy"
            curve = [f"{at['accuracy']:.3f}" for at in reading["summary"]["robust_accuracy"]]
            rows.append([f"PGD-{attack['steps']}", attack["sees"], attack["gradient"], answer, *curve])
        columns = ["attack", "gradient of", "gradient", "answer", *(f"{radius:g}" for radius in self.radii)]
        print_table(columns, rows, left=4)


COMMAND = Readings
