"""Common corruptions: how far they shift the data, what accuracy is left, and what is certified."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rhobust.certificates import ReferenceVotes, ShiftClaim, noise_kind, sample_votes
from rhobust.certificates.shift import PURPOSE
from rhobust.data import CORRUPTIONS, SEVERITIES, check_corruptions, corrupt, corruption_block, pair_distances, to_unit
from rhobust.evaluation.base import NoisyEvaluation
from rhobust.evaluation.pictures import keep_corrupted
from rhobust.evaluation.sweep import Predictor
from rhobust.evaluation.target import Target
from rhobust.measurements.corruptions import CLEAN, corruption_summary
from rhobust.noise import ExampleNoise
from rhobust.progress import ProgressCallback
from rhobust.proofs.claim import Classifier
from rhobust.records import Record, Row
from rhobust.settings import OMIT_IF_DEFAULT, check_at_least, check_increasing, check_level


@dataclass(frozen=True, kw_only=True)
class Corruptions(NoisyEvaluation):
    """Measure the accuracy under common corruptions at five severities, and certify it where the bound reaches.

    Of each corruption and severity: how far it shifts the test images (eps, which bounds the W2 distance), the accuracy
    of the base network, and, for a target with smoothing noise, the accuracy of one noisy vote and a certificate. A
    row is one image under one corruption; the first row of an image is the unchanged one.

    Guarantee: with probability at least 1 - alpha, all certified accuracies of the summary hold at once, each for the
    corruption and for every other change that moves images no further. And with probability at least 1 - alpha all
    those certified without labels hold at once, each for the corruption alone: they use the labels of unchanged images.
    """

    kind: ClassVar[str] = "corruptions"

    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    """Names of corruptions; default: all that are built in."""
    severities: tuple[int, ...] = SEVERITIES
    """Increasing severities out of 1 to 5."""
    classifier: Classifier = "randomised"
    """randomised: one noisy vote; k-vote: the majority of a few fresh votes, a tie is an error; majority: the class
    most probable under noise. What is measured is always one vote."""
    votes: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Votes of the k-vote classifier; default: 3."""
    draws: int = 20
    """Noise samples per image; more are needed as eps / sigma grows."""
    label_draws: int = 20
    """Further noise samples per unchanged image: their majority is the pseudo-label."""
    alpha: float = 1e-3
    """Probability that one of the statements is false."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "corruptions", check_corruptions(self.corruptions))
        severities = tuple(int(one) for one in check_increasing("severities", self.severities))
        if not set(severities) <= set(SEVERITIES) or severities != tuple(self.severities):
            raise ValueError(f"severities must be whole numbers in 1..5, got {', '.join(map(str, self.severities))}")
        object.__setattr__(self, "severities", severities)
        if not self.corruptions:
            raise ValueError(f"corruptions must name at least one of {', '.join(CORRUPTIONS)}, got none")
        check_at_least(1, self, "draws", "label_draws")
        check_level(self.alpha)
        ShiftClaim(self.classifier, self.votes)

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Every corruption at every severity."""
        return [(name, severity) for name in self.corruptions for severity in self.severities]

    def population(self, target: Target) -> bool:
        return target.sigma is not None

    def derived(self, target: Target) -> Row:
        return {
            "levels": [CORRUPTIONS[name].levels[severity - 1] for name, severity in self.cells],
            "noise": noise_kind(target.data.images),
            "dimension": target.data.dimension,
        }

    def block(self, target: Target) -> int:
        return min(100, corruption_block(target.data.shape))

    def rows_per_example(self, target: Target) -> int:
        return 1 + len(self.cells)

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        examples = list(examples)
        data = target.data.select(examples)
        labels, predictor = data.labels.tolist(), Predictor(target, "base", 1)
        smoothing = None if target.sigma is None else self.smoothing(target)
        if smoothing is not None:
            self.check_network(target)
        found: dict[int, list[Row]] = {index: [] for index in examples}
        known: ReferenceVotes | None = None
        for name, severity in [CLEAN, *self.cells]:
            images = data.images
            if severity:
                # One purpose for all severities: the same noise, only stronger.
                images = corrupt(images, name, severity, rng=ExampleNoise(self.seed, f"corruption:{name}", examples))
            distances = pair_distances(data.images, images).tolist()
            here = images.to(target.device)
            predictions = predictor.predict(to_unit(here), labels, examples, self.seed, "corruption")
            columns: list[Row] = [{"prediction": one["prediction"]} for one in predictions]
            if smoothing is not None:
                if known is None:
                    known = ReferenceVotes.sample(
                        *(target.model, here, smoothing),
                        indices=examples,
                        draws=self.draws,
                        label_draws=self.label_draws,
                    )
                    votes, counted = known.votes, {"mislabelled": known.pseudo_labels != data.labels.numpy()}
                else:
                    votes = sample_votes(
                        target.model, here, smoothing, indices=examples, draws=self.draws, purpose=PURPOSE
                    )
                    counted = dict(zip(("disagreements", "differing"), known.against(votes), strict=True))
                counted["errors"] = (votes != data.labels.numpy()[:, None]).sum(1)
                for place, column in enumerate(columns):
                    column |= {"draws": self.draws, **{name: int(one[place]) for name, one in counted.items()}}
            for index, label, distance, column in zip(examples, labels, distances, columns, strict=True):
                cell = {"corruption": name, "severity": severity, "distance": distance}
                found[index].append({"index": index, "label": label, **cell, **column})
        yield from (row for rows in found.values() for row in rows)

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        return self.proved(corruption_summary, target, rows)

    def compare(self, target: Target, record: Record) -> Row:
        keep_corrupted(record.path, target.data, record.rows, self.cells, self.seed)
        return {}
