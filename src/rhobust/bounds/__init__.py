"""Pure mathematics, numpy and scipy only: whatever is proved is proved here."""

from .confidence import betting_upper as betting_upper
from .confidence import clopper_pearson as clopper_pearson
from .confidence import dkw_margin as dkw_margin
from .confidence import failure_quantile as failure_quantile
from .confidence import survival_upper as survival_upper
from .curvature import concavity_threshold as concavity_threshold
from .curvature import curvature_lower as curvature_lower
from .curvature import curvature_upper as curvature_upper
from .curvature import gradient_bound as gradient_bound
from .curvature import smoothness as smoothness
from .population import kumar_loss as kumar_loss
from .population import population_loss as population_loss
from .population import population_loss_intervals as population_loss_intervals
from .population import sample_loss as sample_loss
from .psi import psi as psi
from .psi import psi1 as psi1
from .psi import psi_slope as psi_slope
from .radius import certified_radius as certified_radius
from .radius import log_e_value as log_e_value
from .radius import log_e_value_below as log_e_value_below
from .surrogate import Cost as Cost
from .transport import k_vote_worst_case as k_vote_worst_case
from .transport import majority_worst_case as majority_worst_case
from .transport import worst_case_loss as worst_case_loss
