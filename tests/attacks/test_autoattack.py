"""AutoAttack: ours is pyautoattack's, and leaves no trace."""

import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from rhobust.attacks import AutoAttack
from rhobust.attacks.autoattack import _components, _SharedRandom, _takes_square, _with_shared_random
from rhobust.noise import ExampleNoise

pyautoattack = pytest.importorskip("pyautoattack")


@pytest.fixture(scope="module")
def network():
    """A network of ten classes that is not linear."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, 10)).eval()


@pytest.fixture(scope="module")
def batch(network):
    x = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    return x, network(x).argmax(1)


def attacked(attack, network, x, y, *, eps=0.3, seed=0, sigma=0.1):
    return attack(network, x, y, eps=eps, sigma=sigma, rng=ExampleNoise(seed, "test", range(len(x))))


def global_states():
    return random.getstate(), [str(part) for part in np.random.get_state()], torch.get_rng_state().tolist()  # noqa: NPY002


@pytest.mark.parametrize("version", ["rand", "standard"])
def test_global_generators_are_left_unchanged(version, network, batch):
    before = global_states()
    attacked(AutoAttack(version, steps=2, draws=2, queries=3), network, *batch)
    assert global_states() == before


@pytest.mark.parametrize("version", ["rand", "standard"])
def test_the_seed_and_nothing_else_decides(version, network, batch):
    attack = AutoAttack(version, steps=3, draws=2, queries=3)
    first = attacked(attack, network, *batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert torch.equal(first, attacked(attack, network, *batch))
    assert not torch.equal(first, attacked(attack, network, *batch, seed=1))


def test_the_parts_are_those_of_the_package():
    standard, rand = (pyautoattack.AutoAttack(nn.Identity(), version=version) for version in ("standard", "rand"))
    assert standard.attacks_to_run == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert rand.attacks_to_run == ["apgd-ce", "apgd-dlr"]
    ours = AutoAttack()
    assert {part.n_iter for part in (standard.apgd, standard.apgd_targeted, standard.fab, rand.apgd)} == {ours.steps}
    restarts = [part.n_restarts for part in (standard.apgd, standard.apgd_targeted, standard.fab, rand.apgd)]
    assert restarts == [1, 1, 1, 1]
    assert standard.apgd_targeted.n_target_classes == standard.fab.n_target_classes == 9
    assert standard.square.n_queries == ours.queries
    assert rand.apgd.eot_iter == ours.draws


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_standard_breaks_what_the_package_breaks(norm, network, batch):
    x, y = batch
    eps = {"l2": 0.6, "linf": 0.12}[norm]
    ours = attacked(AutoAttack("standard", norm, steps=10, queries=20), network, x, y, eps=eps, sigma=None)
    with torch.random.fork_rng(devices=[]):
        theirs = pyautoattack.AutoAttack(network, norm={"l2": "L2", "linf": "Linf"}[norm], eps=eps, seed=0)
        for part in (theirs.apgd, theirs.apgd_targeted, theirs.fab):
            part.n_iter = 10
        theirs.square.n_queries = 20
        perturbed, _ = theirs.run_standard_evaluation(x, y)
    wrong, expected = ((network(points).argmax(1) != y) for points in (ours, perturbed))
    assert 0 < expected.sum() < len(x)
    assert torch.equal(wrong, expected)


@pytest.fixture
def starts(monkeypatch):
    """APGD finds nothing; every start that it is given."""
    from pyautoattack import autopgd_base

    given = []

    def blind(self, x, y, x_init=None):
        given.append((x_init - x).flatten(1))
        return x, None, None, x

    for kind in (autopgd_base.APGDAttack, autopgd_base.APGDAttack_targeted):
        monkeypatch.setattr(kind, "attack_single_run", blind)
    return given


@pytest.mark.usefixtures("starts")
def test_a_later_part_gets_what_the_first_left(network, batch, monkeypatch):
    """With a blind APGD, FAB has to do it; with a blind FAB as well, Square."""
    from pyautoattack import fab_pt, square

    asked = []
    attack = AutoAttack("standard", steps=10, queries=200)
    perturbed = attacked(attack, network, *batch, eps=1.5, sigma=None)
    assert (network(perturbed).argmax(1) != batch[1]).all()
    monkeypatch.setattr(fab_pt.FABAttack_PT, "perturb", lambda self, x, y: asked.append(len(x)) or x)
    perturbed = attacked(attack, network, *batch, eps=1.5, sigma=None)
    assert asked == [12]
    assert (network(perturbed).argmax(1) != batch[1]).any()
    monkeypatch.setattr(square.SquareAttack, "perturb", lambda self, x, y: x)
    assert torch.equal(attacked(attack, network, *batch, eps=1.5, sigma=None), batch[0])


@pytest.mark.parametrize("version", ["rand", "standard"])
@pytest.mark.parametrize(("norm", "order"), [("l2", 2), ("linf", torch.inf)])
def test_every_start_is_on_the_balls_surface(version, norm, order, network, batch, starts):
    attacked(AutoAttack(version, norm, steps=1, draws=2, queries=1), network, *batch)
    assert len(starts) == {"rand": 2, "standard": 10}[version]
    for offset in starts:
        assert offset.norm(order, dim=1) == pytest.approx([0.3] * 12, abs=1e-5)


@pytest.mark.usefixtures("starts")
def test_all_points_are_compared_under_the_same_noise(network, batch):
    """A point that is no worse must not win by its noise: five times the draws of a gradient, drawn once."""
    asked = []
    with network.register_forward_pre_hook(lambda _, args: asked.append(args[0].clone())):
        attacked(AutoAttack(draws=20), network, *batch, sigma=0.1)
    compared = [x for x in asked if len(x) > 12]
    # The input itself, and what APGD brings twice, on cross-entropy and on DLR.
    assert [len(x) for x in compared] == [5 * 20 * 12] * 5
    assert all(torch.equal(x, compared[0]) for x in compared)
    noise = compared[0].unflatten(0, (100, 12)) - batch[0]
    assert noise.std().item() == pytest.approx(0.1, rel=0.02)


def test_rand_maximises_the_smoothed_loss_of_a_half_space(half_space):
    """The nearest points lie along the plane's normal: the attack has to end there under every noise."""
    x = torch.full((3, 1, 4, 4), 0.5) - torch.tensor([0.01, 0.05, 0.1]).view(3, 1, 1, 1)
    y = torch.zeros(3, dtype=torch.long)
    perturbed = attacked(AutoAttack(steps=30, draws=8), half_space, x, y, eps=0.15, sigma=0.25)
    offset = (perturbed - x).flatten(1)
    assert torch.allclose(offset.norm(dim=1), torch.full((3,), 0.15), atol=1e-3)
    assert (offset.sum(1) / 4 > 0.149).all()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("version", ["rand", "standard"])
def test_few_classes_do_without_dlr(version, classes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        network = nn.Sequential(nn.Flatten(), nn.Linear(16, classes))
    x = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(6))
    y = network(x).argmax(1)
    perturbed = attacked(AutoAttack(version, steps=20, draws=4), network, x, y, eps=2.0, sigma=0.01)
    assert (network(perturbed).argmax(1) != y).all()


def test_squares_draws_are_one_for_all_rows():
    with _SharedRandom():
        images, number = torch.rand([4, 3, 1, 1]), torch.rand([1])
    with _SharedRandom():
        other = torch.rand([2, 3, 1, 1])
    assert torch.equal(images, images[:1].expand(4, 3, 1, 1))
    assert torch.equal(images[:2], other)
    assert number.shape == (1,)


@pytest.mark.parametrize("norm", ["L2", "Linf"])
def test_every_number_that_square_draws_is_of_the_named_stream(norm):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    (square,) = _components("square.SquareAttack")
    x = torch.full((3, 1, 8, 8), 0.5)

    def found(kind, seed):
        attack = kind(network, norm=norm, eps=0.01, seed=seed, device=x.device, n_queries=40, resc_schedule=False)
        attack.init_hyperparam(x)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            return attack.attack_single_run(x, network(x).argmax(1))[1]

    assert not torch.equal(found(square, 1), found(square, 2))
    shared = _with_shared_random(square)
    assert torch.equal(found(shared, 1), found(shared, 2))


def test_without_the_package_one_line_says_what_to_install(network, batch, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyautoattack"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(
        ValueError, match=r"^attack:autoattack needs pyautoattack: python -m pip install '.\[attacks\]'"
    ):
        attacked(AutoAttack(), network, *batch)


def test_rand_needs_sigma_and_standard_does_not(network, batch):
    with pytest.raises(ValueError, match="sigma must be given for AutoAttack's version rand, got None"):
        attacked(AutoAttack(), network, *batch, sigma=None)
    assert (AutoAttack().attacks_smoothed, AutoAttack("standard").attacks_smoothed) == (True, False)


@pytest.mark.parametrize("name", ["steps", "draws", "queries"])
def test_bad_hyper_parameters_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        AutoAttack(**{name: 0})


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_square_attacks_images_of_every_size_that_it_takes(norm):
    """Its tiles do not fit in every size; the other sizes are left to the other components."""
    (square,) = _components("square.SquareAttack")
    taken = []
    for height in range(5, 41):
        for width in (height, height + 8):
            x = torch.full((1, 1, height, width), 0.5)
            attack = _with_shared_random(square)(
                lambda x: torch.stack([x.sum((1, 2, 3)), -x.sum((1, 2, 3))], 1),
                norm="L2" if norm == "l2" else "Linf",
                eps=0.1,
                n_queries=1,
                resc_schedule=False,
                device="cpu",
            )
            try:
                with torch.random.fork_rng(devices=[]):  # it seeds the global generator
                    attack.perturb(x, torch.zeros(1, dtype=torch.long))
            except RuntimeError:
                continue
            taken.append((height, width))
    assert {(32, 32), (28, 28), (8, 16)} <= set(taken)
    sizes = [(height, width) for height in range(5, 41) for width in (height, height + 8)]
    assert taken == [size for size in sizes if _takes_square(*size, norm=norm)]


def test_images_that_square_does_not_take_are_attacked_by_the_others():
    with torch.random.fork_rng(devices=[]):
        network = nn.Sequential(nn.Flatten(), nn.Linear(24 * 32, 4)).eval()
    x = torch.full((2, 1, 24, 32), 0.5)
    y = network(x).argmax(1)
    assert AutoAttack("standard", steps=2, queries=2)(network, x, y, eps=0.1).shape == x.shape
