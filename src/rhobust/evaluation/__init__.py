"""Evaluations: walk a test set through an attack or a certificate, into records that resume."""

from .answers import check_answers as check_answers
from .attacking import attack_target as attack_target
from .attacking import check_radii as check_radii
from .auditing import audit_record as audit_record
from .certified import certified_curve as certified_curve
from .certified import certified_differences as certified_differences
from .certifying import certify_target as certify_target
from .curves import Ascent as Ascent
from .curves import curves_target as curves_target
from .measuring import measure_pairs as measure_pairs
from .measuring import measure_target as measure_target
from .measuring import record_pairs as record_pairs
from .readings import paper_readings as paper_readings
from .readings import with_and_without_noise as with_and_without_noise
from .shift import certify_shift_target as certify_shift_target
from .soundness import contradictions as contradictions
from .target import Target as Target
from .target import source_from_run as source_from_run
from .target import target_from_folder as target_from_folder
from .target import target_from_run as target_from_run
from .target import target_from_weights as target_from_weights
from .transferring import surprising_transfers as surprising_transfers
from .transferring import transfer_matrix as transfer_matrix
from .tsv import read_tsv as read_tsv
from .tsv import write_tsv as write_tsv
