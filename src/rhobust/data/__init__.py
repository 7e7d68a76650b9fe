"""Data sets: download, verification, loading, batches and augmentation."""

from rhobust.data.dataset import Dataset as Dataset
from rhobust.data.dataset import DatasetCheck as DatasetCheck
from rhobust.data.dataset import Split as Split
from rhobust.data.dataset import as_float as as_float
from rhobust.data.dataset import augment as augment
from rhobust.data.dataset import channel_statistics as channel_statistics
from rhobust.data.dataset import check_images as check_images
from rhobust.data.dataset import check_labels as check_labels
from rhobust.data.dataset import class_numbers as class_numbers
from rhobust.data.dataset import data_root as data_root
from rhobust.data.dataset import epoch_batches as epoch_batches
from rhobust.data.dataset import to_unit as to_unit
from rhobust.data.images import SUFFIXES as SUFFIXES
from rhobust.data.images import read_image as read_image
from rhobust.data.mixing import cutmix as cutmix
from rhobust.data.pairs import Pairs as Pairs
from rhobust.data.pairs import load_pairs as load_pairs
from rhobust.data.pairs import pair_distances as pair_distances
from rhobust.data.registry import DatasetEntry as DatasetEntry
from rhobust.data.registry import FetchedDataset as FetchedDataset
from rhobust.data.registry import available as available
from rhobust.data.registry import check as check
from rhobust.data.registry import get as get
from rhobust.data.registry import load as load
