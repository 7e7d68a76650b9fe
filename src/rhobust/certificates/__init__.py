"""Certificates: what is proved of a smoothed classifier, at an input and over a distribution."""

from .beside import Comparison as Comparison
from .beside import compare as compare
from .claim import ShiftClaim as ShiftClaim
from .distribution import Evidence as Evidence
from .distribution import ShiftCertificate as ShiftCertificate
from .distribution import certify_shift as certify_shift
from .distribution import count_errors as count_errors
from .distribution import gather_evidence as gather_evidence
from .distribution import shift_certificate as shift_certificate
from .losses import BoundedLoss as BoundedLoss
from .losses import ClippedCrossEntropy as ClippedCrossEntropy
from .losses import ZeroOne as ZeroOne
from .losses import draw_losses as draw_losses
from .radius import Certificate as Certificate
from .radius import certify_inputs as certify_inputs
from .radius import predict_inputs as predict_inputs
from .smoothed import SmoothedClassifier as SmoothedClassifier
from .surrogate import RobustSurrogate as RobustSurrogate
from .surrogate import certified_surrogate as certified_surrogate
from .surrogate import robust_surrogate as robust_surrogate
from .votes import charged_alpha as charged_alpha
from .votes import count_votes as count_votes
from .votes import noise_kind as noise_kind
from .wrm import loss_smoothness as loss_smoothness
from .wrm import wrm_surrogate as wrm_surrogate
