"""Attack a test set over radii: upper bounds on robust accuracy, and how far they can be trusted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from rhobust.attacks import EOT, AnyAttack, AttackMethod, PaperPGD
from rhobust.data import check_labels, to_unit
from rhobust.evaluation.base import Evaluation
from rhobust.evaluation.diagnostics import Attacked, diagnose, first_broken, spread
from rhobust.evaluation.pictures import write_pictures
from rhobust.evaluation.sweep import BLOCKS, Predictor, PredictorName, Sweep, norm_of
from rhobust.evaluation.target import Target
from rhobust.measurements import VOTE_LEVEL, contradictions, robust_curve, stronger_attacks, unresolved
from rhobust.measurements.comparison import RADII
from rhobust.models.inference import frozen, output_width
from rhobust.progress import ProgressCallback
from rhobust.records import Record, Row, finished_records
from rhobust.settings import AUTO, check_count, check_instance, kind_of

PICTURES = 6
"""Largest number of adversarial examples that are kept as pictures."""


@dataclass(frozen=True, kw_only=True)
class Attack(Evaluation):
    """Attack test examples at increasing radii; the share that stays robust is an upper bound on robust accuracy.

    By default radii are nested: an example that is not robust at one radius is not robust at any larger one, so only
    robust examples are attacked further. The rows do not depend on interruptions, on the number of processes or, on a
    CPU, on how examples are batched: noise streams are named by the example and the radius.

    The summary holds `warnings`, reasons to distrust the numbers, and `contradictions` with certificates in the same
    folder, which are errors. A few adversarial examples are kept as pictures in its folder.
    """

    kind: ClassVar[str] = "attack"

    attack: AnyAttack = EOT()
    """The attack and its hyper-parameters."""
    radii: tuple[float, ...] = RADII
    """Increasing radii in units of the [0, 1] pixel range, in the attack's norm."""
    predictor: PredictorName | None = field(default=None, metadata=AUTO)
    """Count the predictions of the base network or of the smoothed classifier; default: what the attack is meant for,
    EOT the smoothed one, PGD the base network."""
    votes: int = 100
    """Noise samples per prediction of the smoothed classifier; the base network needs none."""
    nested: bool = True
    """False: attack every example at every radius, not only those that are robust at all smaller ones."""
    probe: bool = True
    """False: do not attack a few examples again with a stronger attack, as a check."""
    fast: bool | None = field(default=None, metadata=AUTO)
    """Take gradients, and votes under noise, of a bf16 copy of the network, which is then the classifier under attack;
    default: on a GPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._increasing("radii")
        check_count("votes", self.votes)
        if self.predictor == "base":
            object.__setattr__(self, "votes", Attack.votes)  # not used: two evaluations must not differ by it

    @property
    def label(self) -> str:
        return kind_of(type(self.attack))

    def rows_per_example(self, target: Target) -> int:
        return len(self.radii)

    def resolve(self, target: Target) -> Self:
        check_instance("attack", self.attack, AttackMethod, "an attack such as EOT(steps=20)")
        smoothed = self.attack.attacks_smoothed or (isinstance(self.attack, PaperPGD) and target.sigma is not None)
        evaluation = replace(
            super().resolve(target),
            predictor=self.predictor or ("smoothed" if smoothed else "base"),
            fast=target.device.type == "cuda" if self.fast is None else self.fast,
        )
        if self.attack.attacks_smoothed:
            target.attacked.smoothing_sigma()
        evaluation.classifier(target)
        check_networks(target.attacked, target)
        if target.source is not None:
            target.source.check_unchanged()  # the record names the source by its weights alone
        return evaluation

    def classifier(self, target: Target) -> Predictor:
        """Whose predictions are counted."""
        return Predictor(target, self.predictor or "base", self.votes, fast=bool(self.fast))

    def derived(self, target: Target) -> Row:
        return {
            "norm": norm_of(self.attack),
            "votes": self.votes if self.predictor == "smoothed" else None,
            "source": None if target.source is None else target.source.source_identity(),
            "dtype": self.classifier(target).dtype,
        }

    @classmethod
    def from_settings(cls, settings: Row) -> Self:
        votes = settings.get("votes")
        return super().from_settings({**settings, "votes": cls.votes if votes is None else votes})

    def block(self, target: Target) -> int:
        return BLOCKS[target.device.type]

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        (rows,) = self._sweep(target, examples).over(self.radii)
        yield from rows

    def _sweep(self, target: Target, examples: Sequence[int]) -> Sweep:
        predictors, fast = [self.classifier(target)], bool(self.fast)
        return Sweep(target.attacked, self.attack, predictors, list(examples), self.seed, nested=self.nested, fast=fast)

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        warnings, measured = diagnose(self._attacked(target), rows, probe=self.probe)
        return {
            "robust_accuracy": robust_curve(rows, self.radii),
            "vote_level": VOTE_LEVEL if self.predictor == "smoothed" else None,
            **measured,
            "warnings": warnings,
        }

    def compare(self, target: Target, record: Record) -> Row:
        assert record.summary is not None
        self._keep_pictures(target, record.rows, record.path)
        attacks, certificates = (finished_records(record.path.parent, kind) for kind in ("attack", "certify"))
        together = [record, *certificates]
        return {
            "warnings": record.summary["warnings"] + stronger_attacks(record, attacks) + unresolved(together),
            "contradictions": contradictions(together),
        }

    def _attacked(self, target: Target) -> Attacked:
        return Attacked(
            target.attacked, self.classifier(target), self.attack, self.radii, self.seed, fast=bool(self.fast)
        )

    def _keep_pictures(self, target: Target, rows: Sequence[Row], path: Path) -> None:
        """Attack a few examples once more and write the adversarial ones to an .npz file in the record's folder.

        They are spread evenly over all examples that are not robust at a radius above 0, each at its smallest such
        radius. Noise is named by example and radius, so a CPU repeats the points behind the rows; a GPU may miss one by
        rounding, which is then left out. The rows are in the file as columns, with the images before (uint8) and after
        (float32) and the names of the classes. Where every example is robust there is no file.
        """
        first = first_broken(rows)
        chosen = spread(sorted(index for index, radius in first.items() if radius > 0), PICTURES)
        if not chosen:
            return
        last = max(first[index] for index in chosen)
        again = self._sweep(target, chosen)
        again.over([radius for radius in self.radii if radius <= last])
        made = {chosen[position]: found for position, found in again.breaks[0].items()}
        broken = [made[index] for index in chosen if index in made and made[index][0]["radius"] == first[index]]
        if not broken:
            return
        broken.sort(key=lambda found: found[0]["radius"])
        data = target.data
        arrays: dict[str, Any] = {key: np.array([row[key] for row, _ in broken]) for key in broken[0][0]}
        arrays["before"] = data.images[arrays["index"].tolist()].numpy()
        arrays["after"] = np.stack([point.cpu().numpy() for _, point in broken])
        write_pictures(path, data, **arrays)


def check_networks(source: Target, target: Target) -> None:
    """Refuse a network that has no class for a label, and a source that cannot be attacked on the target's images."""
    image, labels = to_unit(target.data.images[:1]), target.data.labels
    for network in (source, target):
        try:
            check_labels(labels, output_width(network.model, image.to(network.device)))
        except ValueError as error:
            raise ValueError(f"{network.name}: {error}") from error
    with frozen(source.model) as model, torch.enable_grad():
        if not model(image.to(source.device).requires_grad_()).requires_grad:
            raise ValueError(
                f"{source.name} must be differentiable to be attacked, but its output has no gradient; certify and"
                " certify-shift need none"
            )
