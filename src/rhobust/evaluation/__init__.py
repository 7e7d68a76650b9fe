"""Evaluations: frozen dataclasses of their settings, one engine that runs them into records, and what they run on."""

from rhobust.evaluation.accuracy import Accuracy as Accuracy
from rhobust.evaluation.attack import Attack as Attack
from rhobust.evaluation.audit import audit_file as audit_file
from rhobust.evaluation.audit import audit_record as audit_record
from rhobust.evaluation.base import EVALUATIONS as EVALUATIONS
from rhobust.evaluation.base import Evaluation as Evaluation
from rhobust.evaluation.base import NoisyEvaluation as NoisyEvaluation
from rhobust.evaluation.base import evaluation_of as evaluation_of
from rhobust.evaluation.base import find_record as find_record
from rhobust.evaluation.certify import Certify as Certify
from rhobust.evaluation.conform import Conform as Conform
from rhobust.evaluation.corruptions import Corruptions as Corruptions
from rhobust.evaluation.engine import run as run
from rhobust.evaluation.measured_shift import MeasureDistance as MeasureDistance
from rhobust.evaluation.measured_shift import MeasureShift as MeasureShift
from rhobust.evaluation.measured_shift import distance_summary as distance_summary
from rhobust.evaluation.shift import AttackShift as AttackShift
from rhobust.evaluation.shift import CertifyShift as CertifyShift
from rhobust.evaluation.target import Target as Target
from rhobust.evaluation.target import Untargeted as Untargeted
from rhobust.evaluation.transfer import Transfer as Transfer
from rhobust.evaluation.transfer import surprising_transfers as surprising_transfers
from rhobust.evaluation.transfer import transfer_matrix as transfer_matrix
from rhobust.evaluation.worst_case import Ascent as Ascent
from rhobust.evaluation.worst_case import WorstCaseCurves as WorstCaseCurves
from rhobust.settings import check_increasing as check_increasing
