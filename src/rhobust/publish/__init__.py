"""A run as a folder for the Hugging Face Hub: model card, safetensors, config and records."""

from rhobust.publish.card import model_card as model_card
from rhobust.publish.folder import Published as Published
from rhobust.publish.folder import publish_run as publish_run
from rhobust.publish.folder import push_folder as push_folder
