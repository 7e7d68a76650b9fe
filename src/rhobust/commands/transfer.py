"""rhobust transfer."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from rhobust.commands.options import (
    Counting,
    CountingOptions,
    print_table,
    print_trained,
    print_warnings,
    record_document,
)
from rhobust.commands.target import FLAT, RunsOptions
from rhobust.evaluation import Transfer, surprising_transfers, transfer_matrix


@dataclass(frozen=True)
class TransferCommand:
    """Attack each of several runs and count the predictions of all of them: a transfer matrix."""

    networks: Annotated[RunsOptions, FLAT] = field(default_factory=RunsOptions)
    evaluation: Annotated[Transfer, FLAT] = field(default_factory=Transfer)
    common: CountingOptions = Counting()

    def run(self) -> dict[str, Any]:
        targets = self.networks.targets(self.common)
        common = self.common
        records = transfer_matrix(
            self.evaluation, targets, executor=common.chosen(), progress=common.progress, wait=common.wait
        )
        return {
            "runs": [str(folder) for folder in self.networks.runs],
            "records": [record_document(record) for record in records],
            "warnings": surprising_transfers(records),
        }

    def show(self, result: dict[str, Any]) -> None:
        names = result["runs"]
        for place, radius in enumerate(self.evaluation.radii):
            print(f"radius {radius:g}: robust accuracy of the column's run, attacked on the row's")
            rows = [
                [name, *(f"{to['robust_accuracy'][place]['accuracy']:.3f}" for to in record["summary"]["targets"])]
                for name, record in zip(names, result["records"], strict=True)
            ]
            print_table(["attacked on", *names], rows)
        scored = [to["scored"] for to in result["records"][0]["summary"]["targets"]]
        print("predictor: " + ", ".join(f"{name} {one}" for name, one in zip(names, scored, strict=True)))
        print_trained(*result["records"])
        print_warnings(
            [*(w for record in result["records"] for w in record["summary"]["warnings"]), *result["warnings"]]
        )
        for record in result["records"]:
            print(record["record"])


COMMAND = TransferCommand
