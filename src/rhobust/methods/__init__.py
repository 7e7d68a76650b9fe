"""Training methods: frozen dataclasses of their hyper-parameters.

A new method is one file with such a dataclass and one more member of `AnyMethod`.
"""

from rhobust.methods.adversarial import AdversarialTraining as AdversarialTraining
from rhobust.methods.base import Loss as Loss
from rhobust.methods.base import Method as Method
from rhobust.methods.base import RepeatableLoss as RepeatableLoss
from rhobust.methods.base import consistency_loss as consistency_loss
from rhobust.methods.base import penalised_step as penalised_step
from rhobust.methods.base import repeatable as repeatable
from rhobust.methods.base import squared_distance as squared_distance
from rhobust.methods.budget import gamma_of as gamma_of
from rhobust.methods.budget import rho_of as rho_of
from rhobust.methods.catrs import CATRS as CATRS
from rhobust.methods.consistency import Consistency as Consistency
from rhobust.methods.denoising import Denoising as Denoising
from rhobust.methods.erm import ERM as ERM
from rhobust.methods.gaussian import Gaussian as Gaussian
from rhobust.methods.macer import MACER as MACER
from rhobust.methods.nal import NAL as NAL
from rhobust.methods.robust_loss import RobustLoss as RobustLoss
from rhobust.methods.robust_loss import robust_loss as robust_loss
from rhobust.methods.smoothadv import SmoothAdv as SmoothAdv
from rhobust.methods.smoothmix import SmoothMix as SmoothMix
from rhobust.methods.stn import STN as STN
from rhobust.methods.trades import TRADES as TRADES
from rhobust.methods.trades import divergence as divergence
from rhobust.methods.wrm import WRM as WRM

AnyMethod = (
    ERM
    | Gaussian
    | STN
    | AdversarialTraining
    | TRADES
    | SmoothAdv
    | WRM
    | NAL
    | Consistency
    | SmoothMix
    | MACER
    | CATRS
)
"""Every method: the command line, the config files and the tests are derived from this union."""
