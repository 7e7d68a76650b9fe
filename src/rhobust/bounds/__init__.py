"""The mathematics of every guarantee: numpy and scipy only, float or array in, float64 out, rounded outward.

Modules: `confidence` (binomial and mean bounds), `radius`, `sequential`, `boundary` and `pairwise` (certified radius
and its tests), `smoothness` (Hessian bounds, concavity threshold), `surrogate` and `transport` (worst case over a
Wasserstein ball), `majorant` and `population` (the same around the population, from counts), `subpopulation` (and over
subpopulations and mixtures), `conformal` (prediction sets), `measured_shift`, `allocation` (an attack's budget),
`baselines`.

Some functions are offered though no command calls them. They state results that docs/theory.md proves or docs/paper.md
uses: `gradient_bound`, `curvature_upper`, `curvature_lower` (sharp constants), `psi1`, `psi_slope` (W1 surrogate and
envelope derivative), `k_vote_worst_case`, `majority_worst_case` (other classifiers, exact losses known),
`noisy_rho`, `clean_rho` (the paper's budget that includes the noise).
"""

from rhobust.bounds.baselines import kumar_loss as kumar_loss
from rhobust.bounds.baselines import lecuyer_radius as lecuyer_radius
from rhobust.bounds.baselines import li_radius as li_radius
from rhobust.bounds.boundary import BoundaryTest as BoundaryTest
from rhobust.bounds.confidence import betting_upper as betting_upper
from rhobust.bounds.confidence import clopper_pearson as clopper_pearson
from rhobust.bounds.confidence import contradictions_by_chance as contradictions_by_chance
from rhobust.bounds.confidence import dkw_margin as dkw_margin
from rhobust.bounds.confidence import failure_quantile as failure_quantile
from rhobust.bounds.confidence import missed_by_sample as missed_by_sample
from rhobust.bounds.confidence import rejects_label as rejects_label
from rhobust.bounds.confidence import shuffle as shuffle
from rhobust.bounds.confidence import smallest_found as smallest_found
from rhobust.bounds.confidence import survival_upper as survival_upper
from rhobust.bounds.conformal import CertifiedThreshold as CertifiedThreshold
from rhobust.bounds.conformal import certified_threshold as certified_threshold
from rhobust.bounds.majorant import SecondStage as SecondStage
from rhobust.bounds.measured_shift import EpsUpper as EpsUpper
from rhobust.bounds.measured_shift import MeasuredLoss as MeasuredLoss
from rhobust.bounds.measured_shift import RecentredLoss as RecentredLoss
from rhobust.bounds.measured_shift import eps_upper as eps_upper
from rhobust.bounds.measured_shift import excess_upper as excess_upper
from rhobust.bounds.measured_shift import measured_loss as measured_loss
from rhobust.bounds.measured_shift import recentred_loss as recentred_loss
from rhobust.bounds.pairwise import PairwiseTest as PairwiseTest
from rhobust.bounds.pairwise import log_pairwise_e_value as log_pairwise_e_value
from rhobust.bounds.population import population_loss as population_loss
from rhobust.bounds.population import population_loss_intervals as population_loss_intervals
from rhobust.bounds.population import population_loss_uppers as population_loss_uppers
from rhobust.bounds.population import randomized_counts as randomized_counts
from rhobust.bounds.population import sample_loss as sample_loss
from rhobust.bounds.radius import certified_radius as certified_radius
from rhobust.bounds.radius import log_e_value as log_e_value
from rhobust.bounds.radius import routed_radius as routed_radius
from rhobust.bounds.sequential import RadiusTest as RadiusTest
from rhobust.bounds.sequential import chance_left as chance_left
from rhobust.bounds.sequential import draws_for_tolerance as draws_for_tolerance
from rhobust.bounds.sequential import looks as looks
from rhobust.bounds.smoothness import concavity_threshold as concavity_threshold
from rhobust.bounds.smoothness import curvature_lower as curvature_lower
from rhobust.bounds.smoothness import curvature_upper as curvature_upper
from rhobust.bounds.smoothness import gap_bound as gap_bound
from rhobust.bounds.smoothness import gradient_blocks as gradient_blocks
from rhobust.bounds.smoothness import gradient_bound as gradient_bound
from rhobust.bounds.smoothness import smoothness as smoothness
from rhobust.bounds.smoothness import squared_gradient_upper as squared_gradient_upper
from rhobust.bounds.subpopulation import MixtureLoss as MixtureLoss
from rhobust.bounds.subpopulation import mixture_loss as mixture_loss
from rhobust.bounds.subpopulation import subpopulation_loss as subpopulation_loss
from rhobust.bounds.surrogate import Cost as Cost
from rhobust.bounds.surrogate import psi as psi
from rhobust.bounds.surrogate import psi1 as psi1
from rhobust.bounds.surrogate import psi_slope as psi_slope
from rhobust.bounds.transport import clean_rho as clean_rho
from rhobust.bounds.transport import k_vote_worst_case as k_vote_worst_case
from rhobust.bounds.transport import majority_worst_case as majority_worst_case
from rhobust.bounds.transport import noisy_rho as noisy_rho
from rhobust.bounds.transport import shift_lower_bound as shift_lower_bound
from rhobust.bounds.transport import spend_budget as spend_budget
from rhobust.bounds.transport import worst_case_loss as worst_case_loss
from rhobust.bounds.transport import worst_case_lower_bound as worst_case_lower_bound
