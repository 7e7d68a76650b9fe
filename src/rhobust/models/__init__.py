"""Networks that take images in [0, 1] and return logits."""

from rhobust.models.build import MODELS as MODELS
from rhobust.models.build import Activation as Activation
from rhobust.models.build import build_model as build_model
from rhobust.models.build import check_model_name as check_model_name
from rhobust.models.build import start_from as start_from
from rhobust.models.denoised import Denoised as Denoised
from rhobust.models.denoised import dncnn as dncnn
from rhobust.models.inference import StepRule as StepRule
from rhobust.models.inference import frozen as frozen
from rhobust.models.networks import Normalised as Normalised
from rhobust.models.pretrained import PRETRAINED as PRETRAINED
from rhobust.models.pretrained import pretrained_weights as pretrained_weights
from rhobust.models.sources import load_model as load_model
from rhobust.models.weights import fill_weights as fill_weights
