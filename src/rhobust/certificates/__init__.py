"""Certificates: what is proved of a smoothed classifier, at an input and over a distribution."""

from .distribution import ShiftCertificate as ShiftCertificate
from .distribution import certify_shift as certify_shift
from .distribution import count_errors as count_errors
from .distribution import shift_certificate as shift_certificate
from .measured import MeasuredCertificate as MeasuredCertificate
from .measured import MeasuredShift as MeasuredShift
from .measured import certify_measured_shift as certify_measured_shift
from .measured import measure_shift as measure_shift
from .measured import measured_certificate as measured_certificate
from .measured import measured_shift as measured_shift
from .measured import vote_accuracy as vote_accuracy
from .radius import Certificate as Certificate
from .radius import certify_inputs as certify_inputs
from .radius import predict_inputs as predict_inputs
from .smoothed import SmoothedClassifier as SmoothedClassifier
from .votes import charged_alpha as charged_alpha
from .votes import count_votes as count_votes
from .votes import noise_kind as noise_kind
