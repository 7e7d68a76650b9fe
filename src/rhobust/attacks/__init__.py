"""Attacks: frozen dataclasses of their hyper-parameters that perturb inputs within a norm ball.

A new attack is one file with such a dataclass and one more member of `AnyAttack`.
"""

from rhobust.attacks.autoattack import AutoAttack as AutoAttack
from rhobust.attacks.base import AttackMethod as AttackMethod
from rhobust.attacks.gradient import GradientAttack as GradientAttack
from rhobust.attacks.gradient import ascend as ascend
from rhobust.attacks.gradient import base_loss as base_loss
from rhobust.attacks.gradient import label_losses as label_losses
from rhobust.attacks.pgd import EOT as EOT
from rhobust.attacks.pgd import PGD as PGD
from rhobust.attacks.pgd import PaperPGD as PaperPGD

AnyAttack = PGD | EOT | PaperPGD | AutoAttack
"""Every attack: the command line, the records and the tests are derived from this union."""
