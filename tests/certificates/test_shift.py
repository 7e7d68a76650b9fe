"""The certificate for distributions against true worst cases and against its bounds."""

import numpy as np
import pytest
import torch
from scipy import stats

from rhobust.bounds import (
    betting_upper,
    k_vote_worst_case,
    kumar_loss,
    majority_worst_case,
    population_loss,
    population_loss_intervals,
    population_loss_uppers,
    randomized_counts,
    sample_loss,
    worst_case_loss,
)
from rhobust.certificates import (
    ClippedCrossEntropy,
    ShiftClaim,
    ShiftProcedure,
    Smoothing,
    VoteCounts,
    ZeroOne,
    baseline_certificates,
    certify_shift,
    count_votes,
    sample_losses,
)
from rhobust.certificates.losses import rounding_noise
from rhobust.data import to_unit
from rhobust.evaluation import CertifyShift
from rhobust.noise import grid_deviation

EPS = (0.0, 0.1, 0.5)


def test_the_certificate_is_below_the_true_worst_case(half_space, grey_images):
    # For a half space the worst case over the W2 ball is known: every point's error probability is exact.
    images = grey_images.images.repeat(25, 1, 1, 1)
    labels = grey_images.labels.repeat(25)
    certificate = certify_shift(half_space, images, labels, sigma=0.25, eps=EPS, draws=20, alpha=0.01)
    distance = half_space(to_unit(grey_images.images))[:, 1].abs().detach().numpy()
    wrong = stats.norm.cdf(-distance / 0.25)
    truth = 1 - np.array([worst_case_loss(wrong, eps**2, 0.25) for eps in EPS])
    certified = np.array(certificate.certified_accuracy)
    assert (certified < truth).all()
    assert (certified > truth - 0.12).all()
    assert (np.diff(certified) < 0).all()
    assert certificate.accuracy_under_noise == pytest.approx(1 - wrong.mean(), abs=0.02)
    assert (certificate.points, certificate.draws, certificate.noise) == (1000, 20, "grid")


def test_the_statement_is_rounded_down(half_space, grey_images):
    certificate = certify_shift(half_space, grey_images.images, grey_images.labels, sigma=0.25, eps=EPS, alpha=0.01)
    statement = certificate.statement(0.1)
    shown = float(statement.rsplit("at least ", 1)[1].split("%")[0])
    assert 0 <= 100 * certificate.certified_accuracy[1] - shown < 0.1
    assert statement.startswith("With probability 99% over test points and noise")
    assert "W2 distance 0.1" in statement
    with pytest.raises(ValueError, match=r"eps must be one of 0, 0\.1, 0\.5, got 0\.3"):
        certificate.statement(0.3)
    single = certify_shift(
        half_space, grey_images.images, grey_images.labels, sigma=0.25, eps=np.array([0.1], np.float32)
    )
    with pytest.raises(ValueError, match=r"eps must be one of 0\.10000000149011612, got 0\.1"):
        single.statement(0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": (-0.1, 0.2)}, "eps must be >= 0, got -0.1"),
        ({"eps": ()}, "eps must hold at least one"),
        ({"eps": 0.1}, r"eps must be a list of numbers, got 0\.1"),
        ({"draws": 20.0}, r"draws must be an int, got 20\.0"),
        ({"dtype": "float64"}, "dtype must be one of float32"),
        ({"sigma": torch.tensor(0.25)}, r"sigma must be a number, got tensor\(0\.25"),
        ({"draws": 0}, "draws must be >= 1, got 0"),
        ({"alpha": 2.0}, r"alpha must be in \(0, 1\)"),
        ({"sigma": 0.0}, "sigma must be > 0"),
    ],
)
def test_bad_settings_are_refused(half_space, grey_images, settings, message):
    with pytest.raises(ValueError, match=message):
        certify_shift(half_space, grey_images.images, grey_images.labels, **({"sigma": 0.25, "eps": EPS} | settings))


def test_bad_labels_are_refused(half_space, grey_images):
    for labels in (grey_images.labels[:3], grey_images.labels.float()):
        with pytest.raises(ValueError, match="y must be a tensor of one class number per input"):
            certify_shift(half_space, grey_images.images, labels, sigma=0.25, eps=EPS)
    for labels, given in ((["dark"] * 40, "<U4"), (grey_images.labels.double().numpy(), "float64")):
        with pytest.raises(ValueError, match=rf"y must be whole numbers, .* got {given} of shape \(40,\)"):
            certify_shift(half_space, grey_images.images, labels, sigma=0.25, eps=EPS)
    with pytest.raises(ValueError, match=r"y must be given, one class number per input \(40\), or inputs that come"):
        certify_shift(half_space, grey_images.images, sigma=0.25, eps=EPS)
    labels = grey_images.labels.clone()
    labels[-1] = 2
    with pytest.raises(ValueError, match=r"labels must be in \[0, 2\), got 0 to 2"):
        certify_shift(half_space, grey_images.images, labels, sigma=0.25, eps=EPS)


@pytest.mark.parametrize("claim", [ShiftClaim(), ShiftClaim(loss="cross-entropy")], ids=["0-1", "cross-entropy"])
def test_labels_and_images_may_be_of_any_width(half_space, grey_images, claim):
    def certified(x, y):
        return certify_shift(half_space, x, y, sigma=0.25, eps=EPS, claim=claim)

    x, y = grey_images.images, grey_images.labels
    for dtype in (torch.int32, torch.uint8, torch.bool):
        assert certified(x, y.to(dtype)) == certified(x, y)
    assert certified(x.double() / 255, y) == certified(x, y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: x, r"the network must be a torch\.nn\.Module, got a function"),
        (torch.nn.Linear, r"the network must be a torch\.nn\.Module, got a type"),
    ],
)
def test_what_is_no_network_is_refused(model, message, grey_images):
    with pytest.raises(ValueError, match=message):
        certify_shift(model, grey_images.images, grey_images.labels, sigma=0.25, eps=EPS)


def test_eps_is_checked_before_sampling(half_space, grey_images):
    evaluated = []
    half_space.register_forward_hook(lambda *_: evaluated.append(1))
    with pytest.raises(ValueError, match="eps must be finite"):
        certify_shift(half_space, grey_images.images, grey_images.labels, sigma=0.25, eps=[float("nan")])
    assert not evaluated


def test_more_errors_never_certify_more():
    def certified(errors):
        return procedure.certify(VoteCounts(np.array(errors)), (0.1,)).certified_accuracy[0]

    procedure = ShiftProcedure(ShiftClaim(), Smoothing(0.5, 2), points=400, dimension=64, draws=10, alpha=0.01)
    rng = np.random.default_rng(0)
    errors = rng.integers(0, 3, 400)
    assert certified(errors) >= certified(errors + 3)


def test_counts_of_some_points_are_no_certificate_of_all():
    procedure = ShiftProcedure(ShiftClaim(estimator="sample"), Smoothing(0.5, 2), points=400, dimension=64, draws=10)
    with pytest.raises(ValueError, match="counts must be those of all 400 points, got 40"):
        procedure.certify(VoteCounts(np.zeros(40)), (0.1,))


def test_points_that_would_share_their_noise_are_refused(half_space, grey_images):
    procedure = ShiftProcedure(ShiftClaim(), Smoothing(0.25, 2), points=40, dimension=16)
    with pytest.raises(ValueError, match="indices must be different, got 40 with 39 different ones"):
        procedure.sample(half_space, grey_images.images, grey_images.labels, indices=[*range(39), 0])


def test_alpha_is_corrected_for_every_round_of_samples():
    procedure = ShiftProcedure(ShiftClaim(), Smoothing(0.25, 2), points=400, dimension=64, draws=10, alpha=0.01)
    correction = 0.01 - procedure.level()
    assert correction == pytest.approx(10 * 400 * 64 * grid_deviation(0.25), abs=1e-17)
    assert 0.01 - procedure.level(3) == pytest.approx(3 * correction, abs=1e-17)


def true_errors(half_space, grey_images):
    """Error probabilities of the half space under noise of 0.25, up to what rounding to the grid changes."""
    distance = half_space(to_unit(grey_images.images))[:, 1].abs().detach().numpy()
    return stats.norm.cdf(-distance / 0.25)


@pytest.mark.parametrize(
    ("classifier", "cost"),
    [pytest.param("k-vote", "w2", marks=pytest.mark.slow), ("k-vote", "winf"), ("majority", "w1"), ("majority", "w2")],
)
def test_other_classifiers_are_below_their_true_worst_case(half_space, grey_images, classifier, cost):
    # A half space attains the worst case of every classifier and cost.
    images, labels = grey_images.images.repeat(10, 1, 1, 1), grey_images.labels.repeat(10)
    claim = ShiftClaim(classifier=classifier, cost=cost)
    eps = (0.0, 0.1)
    certificate = certify_shift(half_space, images, labels, sigma=0.25, eps=eps, draws=20, alpha=0.01, claim=claim)
    wrong, rho = true_errors(half_space, grey_images), np.square(eps)
    if classifier == "majority":
        truth = 1 - majority_worst_case(wrong, rho, 0.25, cost=cost)
    else:
        truth = 1 - k_vote_worst_case(wrong, 3, rho, 0.25, cost=cost)
    certified = np.array(certificate.certified_accuracy)
    assert (certified < truth).all()
    assert (certified > truth - 0.35).all()


@pytest.mark.parametrize(
    ("estimator", "bound"),
    [("majorant", population_loss), ("intervals", population_loss_intervals), ("sample", sample_loss)],
)
def test_the_estimators_use_their_bounds(half_space, grey_images, estimator, bound):
    claim = ShiftClaim(classifier="majority", cost="winf", estimator=estimator)
    certificate = certify_shift(
        half_space, grey_images.images, grey_images.labels, sigma=0.25, eps=(0.1,), draws=30, claim=claim
    )
    procedure = ShiftProcedure(claim, Smoothing(0.25, 2), points=40, dimension=16, draws=30)
    counts = procedure.sample(half_space, grey_images.images, grey_images.labels, indices=range(40))
    direct = bound(counts.errors, 30, 0.01, 0.25, 1e-3, cost="winf", votes=None)
    assert certificate.certified_loss[0] == pytest.approx(direct, abs=1e-9)


class Soft(torch.nn.Module):
    """Two classes whose loss, clipped at 2, is 2 with the half space's error and 0 otherwise: the hardest soft loss."""

    def __init__(self, half_space):
        super().__init__()
        self.half_space = half_space

    def forward(self, x):
        return 100 * self.half_space(x).sign()


@pytest.mark.parametrize("estimator", ["majorant", "intervals", "sample"])
def test_the_certified_cross_entropy_is_above_its_true_worst_case(half_space, grey_images, estimator):
    repeats = 1 if estimator == "sample" else 10
    images, labels = grey_images.images.repeat(repeats, 1, 1, 1), grey_images.labels.repeat(repeats)
    claim = ShiftClaim(loss="cross-entropy", bound=2.0, estimator=estimator)
    draws = 20 if estimator == "majorant" else 200
    eps = (0.0, 0.1)
    found = certify_shift(Soft(half_space), images, labels, sigma=0.25, eps=eps, draws=draws, alpha=0.01, claim=claim)
    truth = 2 * worst_case_loss(true_errors(half_space, grey_images), np.square(eps), 0.25)
    loss = np.array(found.certified_loss)
    assert (loss > truth).all()
    assert (loss < truth + 0.5).all()
    assert found.loss_under_noise == pytest.approx(truth[0], abs=0.05)
    with pytest.raises(ValueError, match="certified_accuracy must come from the 0-1 loss, got cross-entropy"):
        _ = found.certified_accuracy
    statement = found.statement(0.1)
    assert "clipped at 2, is at most" in statement
    assert 0 <= float(statement.rsplit("at most ", 1)[1].split(". ")[0]) - loss[1] < 1e-4


def test_a_soft_loss_is_counted_by_its_own_samples(half_space, grey_images):
    images, labels = grey_images.images[10:30], grey_images.labels[10:30]
    names = {"indices": range(10, 30), "draws": 25, "purpose": "shift"}
    loss, smoothing = ClippedCrossEntropy(0.7), Smoothing(0.25, 2, seed=3)
    drawn = sample_losses(half_space, images, labels, loss, smoothing, **names)
    assert drawn.values.shape == (20, 25)
    assert drawn.values.min() > 0
    assert drawn.values.max() == 0.7
    hard = sample_losses(half_space, images, labels, ZeroOne(), smoothing, **names)
    assert (hard.values.sum(1) == drawn.errors).all()
    some = names | {"indices": range(15, 19)}
    part = sample_losses(half_space, images[5:9], labels[5:9], loss, smoothing, **some)
    assert (part.values == drawn.values[5:9]).all()
    claim = ShiftClaim(loss="cross-entropy", bound=0.7)
    procedure = ShiftProcedure(claim, smoothing, points=20, dimension=16, draws=25)
    counts = procedure.sample(half_space, images, labels, indices=range(10, 30))
    votes = count_votes(half_space, images, smoothing, **names)
    assert (drawn.errors == 25 - votes.gather(1, labels[:, None]).squeeze(1).numpy()).all()
    uniform = rounding_noise(3, "shift", range(10, 30), 25)
    assert (counts.rounded_losses == randomized_counts(drawn.values, 0.7, uniform)).all()
    assert (counts.errors == drawn.errors).all()
    assert not (uniform == rounding_noise(4, "shift", range(10, 30), 25)).any()
    assert (uniform[3] == rounding_noise(3, "shift", [13], 25)[0]).all()
    # No two points share a number: their counts must be independent.
    assert len(np.unique(uniform)) == uniform.size


@pytest.mark.parametrize("cost", ["w1", "winf"])
@pytest.mark.parametrize("estimator", ["majorant", "intervals", "sample"])
def test_the_estimators_of_a_soft_loss_use_their_bounds(half_space, grey_images, estimator, cost):
    claim = ShiftClaim(loss="cross-entropy", bound=0.7, cost=cost, estimator=estimator)
    images, labels = grey_images.images, grey_images.labels
    found = certify_shift(half_space, images, labels, sigma=0.25, eps=(0.1,), draws=30, alpha=0.04, claim=claim)
    drawn = sample_losses(
        half_space,
        images,
        labels,
        ClippedCrossEntropy(0.7),
        Smoothing(0.25, 2),
        indices=range(40),
        draws=30,
        purpose="shift",
    )
    shift = {"rho": 0.01, "sigma": 0.25, "cost": cost}
    if estimator == "majorant":
        counts = randomized_counts(drawn.values, 0.7, rounding_noise(0, "shift", range(40), 30))
        direct = population_loss(counts, 30, alpha=0.04, **shift)
    elif estimator == "intervals":
        # One point in a thousand may exceed its bound, which is added; the population's band has all of alpha.
        uppers = betting_upper(drawn.values / 0.7, 1e-3)
        direct = population_loss_uppers(uppers, alpha=0.04, interval_alpha=1e-3, **shift)
    else:
        # Every one of the forty points must keep below its bound.
        direct = worst_case_loss(betting_upper(drawn.values / 0.7, 0.001), **shift)
    assert found.certified_loss[0] == pytest.approx(0.7 * direct, abs=1e-9)


def test_baselines_from_the_same_counts():
    rng = np.random.default_rng(0)
    errors = rng.binomial(20, rng.beta(0.3, 3, 3000))
    eps = (0.0, 0.1, 0.2)
    found = {
        (one.name, one.cost): one.certified_accuracy
        for one in baseline_certificates(errors, draws=20, eps=eps, sigma=0.25, level=1e-3)
    }
    kumar = 1 - kumar_loss(errors, 20, np.square(eps), 0.25, 1e-3)
    assert found["kumar", "w1"] == pytest.approx(kumar)
    assert found["ours", "w1"][1] > found["kumar", "w1"][1]
    assert found["ours", "winf"][2] > found["ours", "w1"][2]
    # Cohen's certified accuracy of the population: a step of the radius, which twenty samples resolve badly.
    assert 0 < found["cohen", "winf"][1] < found["ours", "winf"][1]


def test_what_is_no_claim_is_refused(half_space, grey_images):
    with pytest.raises(ValueError, match=r"claim must be a ShiftClaim such as .*, got a str"):
        certify_shift(half_space, grey_images.images, grey_images.labels, sigma=0.25, eps=EPS, claim="k-vote")
    with pytest.raises(ValueError, match=r"claim must be a ShiftClaim such as .*, got the class ShiftClaim"):
        CertifyShift(claim=ShiftClaim)
