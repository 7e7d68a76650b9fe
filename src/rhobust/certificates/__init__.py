"""Certificates: what is proved of a smoothed classifier, at an input and over a distribution."""

from .distribution import ShiftCertificate as ShiftCertificate
from .distribution import certify_shift as certify_shift
from .distribution import count_errors as count_errors
from .distribution import shift_certificate as shift_certificate
from .radius import Certificate as Certificate
from .radius import certify_inputs as certify_inputs
from .radius import predict_inputs as predict_inputs
from .smoothed import SmoothedClassifier as SmoothedClassifier
from .votes import charged_alpha as charged_alpha
from .votes import count_votes as count_votes
from .votes import noise_kind as noise_kind
