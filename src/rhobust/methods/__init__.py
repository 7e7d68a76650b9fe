"""Training methods: frozen dataclasses that are their hyper-parameters.

A new method is one file with such a dataclass and one more name in `AnyMethod`.
"""

from .erm import Erm as Erm
from .gaussian import Gaussian as Gaussian
from .nal import Nal as Nal
from .protocol import Loss as Loss
from .protocol import Method as Method

AnyMethod = Erm | Gaussian | Nal
"""Every method: the command line, the config files and the tests read this union."""
