"""A local web page that shows what a smoothed classifier answers, and what is proved, for an image of one's own."""

from rhobust.demo.app import build_app as build_app
from rhobust.demo.app import serve as serve
from rhobust.demo.classifier import DemoClassifier as DemoClassifier
from rhobust.demo.classifier import LiveCertificate as LiveCertificate
from rhobust.demo.classifier import PredictedImage as PredictedImage
from rhobust.demo.inputs import decode_drawing as decode_drawing
from rhobust.demo.inputs import fit_drawing as fit_drawing
from rhobust.demo.inputs import fit_photo as fit_photo
from rhobust.demo.inputs import read_example_images as read_example_images
from rhobust.demo.space import NamedNetwork as NamedNetwork
from rhobust.demo.space import write_space as write_space
