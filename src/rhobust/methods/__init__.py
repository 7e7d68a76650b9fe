"""Training methods: frozen dataclasses that are their hyper-parameters.

A new method is one file with such a dataclass and one more name in `AnyMethod`.
"""

from .erm import Erm as Erm
from .gaussian import Gaussian as Gaussian
from .matching import gamma_of as gamma_of
from .matching import rho_of as rho_of
from .nal import Nal as Nal
from .pgd import Pgd as Pgd
from .protocol import Loss as Loss
from .protocol import Method as Method
from .smoothadv import Smoothadv as Smoothadv
from .stn import Stn as Stn
from .trades import Trades as Trades
from .wrm import Wrm as Wrm

AnyMethod = Erm | Gaussian | Stn | Pgd | Trades | Smoothadv | Wrm | Nal
"""Every method: the command line, the config files and the tests read this union."""
