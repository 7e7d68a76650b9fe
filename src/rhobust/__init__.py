"""rhobust: certified distributional robustness of smoothed classifiers.

The public names are imported when they are first used, so that `import rhobust` and `rhobust --help` stay light.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rhobust.version import VERSION as __version__  # noqa: F401, N811

if TYPE_CHECKING:
    from rhobust.bounds import betting_upper as betting_upper
    from rhobust.bounds import certified_radius as certified_radius
    from rhobust.bounds import clopper_pearson as clopper_pearson
    from rhobust.bounds import concavity_threshold as concavity_threshold
    from rhobust.bounds import log_e_value as log_e_value
    from rhobust.bounds import population_loss as population_loss
    from rhobust.bounds import psi as psi
    from rhobust.bounds import smoothness as smoothness
    from rhobust.bounds import worst_case_loss as worst_case_loss
    from rhobust.certificates import Certificate as Certificate
    from rhobust.certificates import MeasuredCertificate as MeasuredCertificate
    from rhobust.certificates import MeasuredShift as MeasuredShift
    from rhobust.certificates import RobustSurrogate as RobustSurrogate
    from rhobust.certificates import ShiftCertificate as ShiftCertificate
    from rhobust.certificates import ShiftClaim as ShiftClaim
    from rhobust.certificates import SmoothedClassifier as SmoothedClassifier
    from rhobust.certificates import certify_measured_shift as certify_measured_shift
    from rhobust.certificates import certify_shift as certify_shift
    from rhobust.certificates import measure_shift as measure_shift
    from rhobust.certificates import robust_surrogate as robust_surrogate
    from rhobust.data import Dataset as Dataset
    from rhobust.data import load as load
    from rhobust.methods import gamma_of as gamma_of
    from rhobust.methods import rho_of as rho_of
    from rhobust.report import write_report as write_report
    from rhobust.training import Run as Run
    from rhobust.training import TrainConfig as TrainConfig
    from rhobust.training import open_run as open_run
    from rhobust.training import train as train

_ROOMS = {
    "bounds": (
        "betting_upper",
        "certified_radius",
        "clopper_pearson",
        "concavity_threshold",
        "log_e_value",
        "population_loss",
        "psi",
        "smoothness",
        "worst_case_loss",
    ),
    "certificates": (
        "Certificate",
        "MeasuredCertificate",
        "MeasuredShift",
        "RobustSurrogate",
        "ShiftCertificate",
        "ShiftClaim",
        "SmoothedClassifier",
        "certify_measured_shift",
        "certify_shift",
        "measure_shift",
        "robust_surrogate",
    ),
    "data": ("Dataset", "load"),
    "methods": ("gamma_of", "rho_of"),
    "report": ("write_report",),
    "training": ("Run", "TrainConfig", "open_run", "train"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rhobust' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rhobust.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
