"""Sweeps: a grid of trainings with the evaluations of each, over any executor, and the table over seeds."""

from rhobust.sweeps.plan import SweepPlan as SweepPlan
from rhobust.sweeps.plan import read_plan as read_plan
from rhobust.sweeps.sweep import SweepOutcome as SweepOutcome
from rhobust.sweeps.sweep import Unit as Unit
from rhobust.sweeps.sweep import plan_units as plan_units
from rhobust.sweeps.sweep import run_sweep as run_sweep
from rhobust.sweeps.sweep import run_units as run_units
from rhobust.sweeps.table import SweepTable as SweepTable
from rhobust.sweeps.table import table_of as table_of
