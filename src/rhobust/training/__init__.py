"""Training runs: config, loop, run folder."""

from .config import TrainConfig as TrainConfig
from .config import config_from_json as config_from_json
from .config import config_to_json as config_to_json
from .config import train_command as train_command
from .environment import describe_environment as describe_environment
from .environment import resolve_device as resolve_device
from .loop import train as train
from .measure import clean_accuracy as clean_accuracy
from .measure import robust_accuracy as robust_accuracy
from .run import Run as Run
from .run import fill_weights as fill_weights
from .run import open_run as open_run
