"""rhobust attack."""

from dataclasses import dataclass
from typing import Any

from rhobust.attacks import AnyAttack, Eot
from rhobust.commands.choice import ChoiceOptions
from rhobust.commands.options import Common, CommonOptions, print_table, record_document
from rhobust.evaluation import attack_target
from rhobust.evaluation.attacking import Scored


@dataclass(frozen=True)
class Attack:
    """Attack a run over radii; what breaks at a radius counts as broken at every larger one."""

    choice: ChoiceOptions
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Increasing L2 radii in units of the [0, 1] pixel range."""
    attack: AnyAttack = Eot()
    """The attack and its hyper-parameters."""
    scored: Scored | None = None
    """Judge by the base network or by a vote of the smoothed one; as the attack sees it where none is given."""
    votes: int = 100
    """Noise draws that judge a smoothed prediction."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        target = self.choice.target(self.common)
        record = attack_target(
            target,
            self.attack,
            self.radii,
            scored=self.scored,
            votes=self.votes,
            **self.choice.sample(self.common),
        )
        return record_document(record)

    def show(self, result: dict[str, Any]) -> None:
        rows = [
            [f"{at['radius']:g}", f"{at['accuracy']:.3f}", f"{at['low']:.3f} to {at['high']:.3f}", str(at["n"])]
            for at in result["summary"]["robust_accuracy"]
        ]
        print_table(["radius", "robust accuracy", "95% interval", "n"], rows)
        for warning in result["summary"]["warnings"]:
            print(f"warning: {warning}")
        print(result["record"])


COMMAND = Attack
