"""The front door: one call from a network and images to numbers, a diagnosis and a page."""

from rhobust.assessment.assessment import Assessment as Assessment
from rhobust.assessment.diagnosis import Finding as Finding
from rhobust.assessment.diagnosis import diagnose_accuracy as diagnose_accuracy
from rhobust.assessment.evaluate import assess as assess
from rhobust.assessment.evaluate import evaluate as evaluate
from rhobust.assessment.plan import Effort as Effort
from rhobust.assessment.plan import plan as plan
