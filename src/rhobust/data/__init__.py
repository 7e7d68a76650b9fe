"""Data sets: two tensors and a description, found, checked, loaded, and batched on the device."""

from .batches import augment as augment
from .batches import epoch_batches as epoch_batches
from .batches import to_unit as to_unit
from .catalogue import Entry as Entry
from .catalogue import Fetched as Fetched
from .catalogue import available as available
from .catalogue import check as check
from .catalogue import get as get
from .catalogue import load as load
from .dataset import Dataset as Dataset
from .dataset import Split as Split
from .dataset import channel_statistics as channel_statistics
from .images import SUFFIXES as SUFFIXES
from .images import read_image as read_image
from .inputs import as_float as as_float
from .inputs import check_images as check_images
from .inputs import check_labels as check_labels
from .inputs import class_numbers as class_numbers
from .pairs import Pairs as Pairs
from .pairs import load_pairs as load_pairs
from .pairs import pair_distances as pair_distances
from .source import Checked as Checked
from .source import data_root as data_root
