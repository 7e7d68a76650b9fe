"""Executors: where blocks of examples are computed. Rows are the same whatever the executor and its workers."""

from rhobust.executors.base import Executor as Executor
from rhobust.executors.base import Local as Local
from rhobust.executors.base import Task as Task
from rhobust.executors.base import WorkerError as WorkerError
from rhobust.executors.choose import choose_executor as choose_executor
from rhobust.executors.processes import Processes as Processes
from rhobust.executors.ranks import Ranks as Ranks
from rhobust.executors.ray import Ray as Ray
