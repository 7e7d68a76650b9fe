"""Training methods: frozen dataclasses that are their hyper-parameters.

A new method is one file with such a dataclass and one more name in `AnyMethod`.
"""

from rhobust.methods.erm import Erm as Erm
from rhobust.methods.gaussian import Gaussian as Gaussian
from rhobust.methods.matching import gamma_of as gamma_of
from rhobust.methods.matching import rho_of as rho_of
from rhobust.methods.nal import Nal as Nal
from rhobust.methods.pgd import Pgd as Pgd
from rhobust.methods.protocol import Loss as Loss
from rhobust.methods.protocol import Method as Method
from rhobust.methods.smoothadv import Smoothadv as Smoothadv
from rhobust.methods.stn import Stn as Stn
from rhobust.methods.trades import Trades as Trades
from rhobust.methods.wrm import Wrm as Wrm

AnyMethod = Erm | Gaussian | Stn | Pgd | Trades | Smoothadv | Wrm | Nal
"""Every method: the command line, the config files and the tests read this union."""
