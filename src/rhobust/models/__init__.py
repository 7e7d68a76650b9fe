"""Networks that take images in [0, 1] and return logits."""

from rhobust.models.inference import StepRule as StepRule
from rhobust.models.inference import frozen as frozen
from rhobust.models.networks import MODELS as MODELS
from rhobust.models.networks import Denoised as Denoised
from rhobust.models.networks import Mirrored as Mirrored
from rhobust.models.networks import Normalised as Normalised
from rhobust.models.networks import dncnn as dncnn
from rhobust.models.sources import Activation as Activation
from rhobust.models.sources import build_model as build_model
from rhobust.models.sources import check_model_name as check_model_name
from rhobust.models.sources import load_model as load_model
from rhobust.models.sources import start_from as start_from
from rhobust.models.weights import PRETRAINED as PRETRAINED
from rhobust.models.weights import fill_weights as fill_weights
from rhobust.models.weights import pretrained_weights as pretrained_weights
