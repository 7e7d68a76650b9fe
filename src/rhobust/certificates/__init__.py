"""Certificates: what is proved of a smoothed classifier, at an input and over a distribution."""

from .alone import check_alone as check_alone
from .distribution import ShiftCertificate as ShiftCertificate
from .distribution import certify_shift as certify_shift
from .distribution import count_errors as count_errors
from .distribution import shift_certificate as shift_certificate
from .radius import Certificate as Certificate
from .radius import Prediction as Prediction
from .radius import certify_inputs as certify_inputs
from .radius import certify_stream as certify_stream
from .radius import plan_for as plan_for
from .radius import predict_inputs as predict_inputs
from .smoothed import SmoothedClassifier as SmoothedClassifier
from .smoothing import Dtype as Dtype
from .smoothing import NoiseKind as NoiseKind
from .smoothing import Smoothing as Smoothing
from .smoothing import charged_alpha as charged_alpha
from .smoothing import native_dtype as native_dtype
from .smoothing import noise_kind as noise_kind
from .votes import VoteCounter as VoteCounter
from .votes import count_votes as count_votes
from .ways import AnyWay as AnyWay
from .ways import Cohen as Cohen
from .ways import Grid as Grid
from .ways import TwoStage as TwoStage
from .ways import WayName as WayName
from .ways import choose_way as choose_way
