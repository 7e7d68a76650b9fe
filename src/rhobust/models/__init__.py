"""Networks that take images in [0, 1] and return logits."""

from rhobust.models.build import MODELS as MODELS
from rhobust.models.build import Activation as Activation
from rhobust.models.build import Normalised as Normalised
from rhobust.models.build import build_model as build_model
from rhobust.models.build import check_model_name as check_model_name
from rhobust.models.build import load_factory_model as load_factory_model
from rhobust.models.inference import StepRule as StepRule
from rhobust.models.inference import frozen as frozen
