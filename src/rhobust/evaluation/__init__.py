"""Evaluations: walk a test set through an attack or a certificate, into records that resume."""

from .attacking import attack_target as attack_target
from .attacking import check_radii as check_radii
from .certifying import certify_target as certify_target
from .shift import certify_shift_target as certify_shift_target
from .target import Target as Target
from .target import target_from_run as target_from_run
from .target import target_from_weights as target_from_weights
