"""Attacks: frozen dataclasses of their hyper-parameters that move inputs within a ball.

A new attack is one file with such a dataclass and one more name in `AnyAttack`.
"""

from .attack import Attack as Attack
from .autoattack import Autoattack as Autoattack
from .climb import Climb as Climb
from .eot import Eot as Eot
from .paper import Paper as Paper
from .pgd import Pgd as Pgd

AnyAttack = Pgd | Eot | Paper | Autoattack
"""Every attack: the command line, the records and the tests read this union."""
