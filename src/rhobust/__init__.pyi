"""The public names of rhobust: the only list of them, for the lazy imports of `__init__.py` and for type checkers."""

from rhobust.assessment import Assessment as Assessment
from rhobust.assessment import evaluate as evaluate
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
from rhobust.data import as_dataset as as_dataset
from rhobust.data import load as load
from rhobust.evaluation import Accuracy as Accuracy
from rhobust.evaluation import Attack as Attack
from rhobust.evaluation import Certify as Certify
from rhobust.evaluation import CertifyShift as CertifyShift
from rhobust.evaluation import Evaluation as Evaluation
from rhobust.evaluation import MeasureShift as MeasureShift
from rhobust.evaluation import Target as Target
from rhobust.evaluation import Transfer as Transfer
from rhobust.evaluation import WorstCaseCurves as WorstCaseCurves
from rhobust.evaluation import find_record as find_record
from rhobust.evaluation import run as run
from rhobust.methods import gamma_of as gamma_of
from rhobust.methods import rho_of as rho_of
from rhobust.models import load_model as load_model
from rhobust.report import write_report as write_report
from rhobust.training import Run as Run
from rhobust.training import TrainConfig as TrainConfig
from rhobust.training import open_run as open_run
from rhobust.training import train as train

__version__: str
