"""Networks that take images in [0, 1] and return logits."""

from .build import MODELS as MODELS
from .build import Activation as Activation
from .build import Normalised as Normalised
from .build import build_model as build_model
from .build import check_model_name as check_model_name
from .build import load_factory_model as load_factory_model
