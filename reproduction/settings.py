"""The paper's settings: what it trains, on what, and how it attacks. Numbers of its tables are read from them."""

from dataclasses import dataclass

from reproduction.reported import TABLES

SIGMA = 0.1
"""Noise unless another is named (Section 5.1, "Noise level")."""
MNIST_SIGMA = 0.05
"""Noise on MNIST for gamma 0.25, 1.5 and 3 (supplement B.3, "Results of varying gamma")."""
GAMMA = 1.5
"""Penalty, unless another is named (Section 5.1)."""
GRID_GAMMA = 1.16
"""Penalty in the table over sigma, K and r (its caption)."""
STEPS, DRAWS = 4, 4
"""K and r unless others are named (Section 5.1, "Sample number and PGD iterations")."""
ATTACK_STEPS = (20, 100)
"""Steps of the PGD attacks, each of length 2 eps / steps (Section 5, "Metrics")."""
MATCH_STEPS = 15
"""Steps of the ascent that gives a gamma its eps (Section 5, "Training hyperparameters")."""
BATCH_SIZE = 128
"""Images per weight update (Section 5, "Training hyperparameters")."""
METHODS = ("PGD", "TRADES", "STN", "SmoothAdv", "Smoothing", "NAL")
"""The rows of Table 2."""
SMOOTHED = ("NAL", "SmoothAdv", "Smoothing", "STN")
"""The methods of the figures on certified accuracy."""
UNLISTED_GAMMAS = (0.25, 1.5, 5.0)
"""Our choice for the figures that show Tiny ImageNet at several gammas: the gammas of CIFAR-10."""


@dataclass(frozen=True)
class Setup:
    """A data set with its network, as the experiments name it."""

    name: str
    """The name in Table 1."""
    data: str
    model: str
    sigma: float
    eta2: float
    """Learning rate of the weights."""
    epochs: int
    eps_of: tuple[tuple[float, float], ...]
    """Pairs of gamma and the eps that Table 1 matches with it."""

    def eps(self, gamma: float) -> float:
        """The L2 radius that Table 1 pairs with a gamma."""
        for listed, eps in self.eps_of:
            if listed == gamma:
                return eps
        listed = ", ".join(f"{known:g}" for known, _ in self.eps_of)
        raise ValueError(f"gamma must be one that Table 1 lists for {self.name} ({listed}), got {gamma:g}")


def _setup(name: str, data: str, model: str, sigma: float) -> Setup:
    table, baselines = TABLES["table1"], TABLES["baselines"]
    gammas, eps = ([float(word) for word in table.text((name,), column).split()] for column in ("gamma", "eps"))
    # The supplement's table states the epochs per data set; its settings are the same for all methods.
    epochs = int(baselines.text((name.partition(" (")[0], "WRM"), "epochs"))
    eta2 = float(table.text((name,), "eta2"))
    return Setup(name, data, model, sigma, eta2, epochs, tuple(zip(gammas, eps, strict=True)))


MNIST = _setup("MNIST", "mnist", "cnn", MNIST_SIGMA)
CIFAR_R = _setup("CIFAR-10 (R)", "cifar10", "resnet18", SIGMA)
CIFAR_V = _setup("CIFAR-10 (V)", "cifar10", "vgg16", SIGMA)
TINY = _setup("Tiny ImageNet", "tiny-imagenet", "resnet18", SIGMA)
SETUPS = (MNIST, CIFAR_R, CIFAR_V, TINY)
"""The paper's data sets with their networks, in the order of Table 1."""
