"""Training runs: config, loop, run folder."""

from rhobust.runtime import describe_environment as describe_environment
from rhobust.runtime import resolve_device as resolve_device
from rhobust.training.config import TrainConfig as TrainConfig
from rhobust.training.config import config_from_json as config_from_json
from rhobust.training.config import config_to_json as config_to_json
from rhobust.training.config import train_command as train_command
from rhobust.training.loop import clean_accuracy as clean_accuracy
from rhobust.training.loop import robust_accuracy as robust_accuracy
from rhobust.training.loop import train as train
from rhobust.training.run import Run as Run
from rhobust.training.run import fill_weights as fill_weights
from rhobust.training.run import open_run as open_run
from rhobust.training.run import write_fingerprint as write_fingerprint
