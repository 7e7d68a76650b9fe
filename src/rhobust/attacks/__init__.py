"""Attacks: frozen dataclasses of their hyper-parameters that move inputs within a ball.

A new attack is one file with such a dataclass and one more name in `AnyAttack`.
"""

from rhobust.attacks.attack import Attack as Attack
from rhobust.attacks.autoattack import Autoattack as Autoattack
from rhobust.attacks.climb import Climb as Climb
from rhobust.attacks.eot import Eot as Eot
from rhobust.attacks.paper import Paper as Paper
from rhobust.attacks.pgd import Pgd as Pgd

AnyAttack = Pgd | Eot | Paper | Autoattack
"""Every attack: the command line, the records and the tests read this union."""
