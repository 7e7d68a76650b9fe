"""Evaluations: walk a test set through an attack or a certificate, into records that resume."""

from rhobust.evaluation.answers import check_answers as check_answers
from rhobust.evaluation.attacking import attack_target as attack_target
from rhobust.evaluation.attacking import check_radii as check_radii
from rhobust.evaluation.auditing import audit_record as audit_record
from rhobust.evaluation.certifying import certify_target as certify_target
from rhobust.evaluation.curves import Ascent as Ascent
from rhobust.evaluation.curves import curves_target as curves_target
from rhobust.evaluation.measuring import measure_pairs as measure_pairs
from rhobust.evaluation.measuring import measure_target as measure_target
from rhobust.evaluation.measuring import record_pairs as record_pairs
from rhobust.evaluation.shift import certify_shift_target as certify_shift_target
from rhobust.evaluation.target import Target as Target
from rhobust.evaluation.target import source_from_run as source_from_run
from rhobust.evaluation.target import target_from_folder as target_from_folder
from rhobust.evaluation.target import target_from_run as target_from_run
from rhobust.evaluation.target import target_from_weights as target_from_weights
from rhobust.evaluation.transferring import surprising_transfers as surprising_transfers
from rhobust.evaluation.transferring import transfer_matrix as transfer_matrix
