"""An executor whose workers are of this process, answer in a random order, and die when they are told to."""

import random

from rhobust.executors import Executor
from rhobust.executors.workers import Event, hand_out


class Scripted(Executor):
    """Some workers; `deaths` of them die in the middle of a block, `stop` ends the driver after so many blocks."""

    def __init__(self, workers=3, seed=0, deaths=0, stop=None):
        self.count, self.random, self.deaths, self.stop = workers, random.Random(seed), deaths, stop
        self.blocks, self.died = [], []

    def size(self, device):
        return self.count

    @property
    def active(self):
        return self.count

    def map(self, task, blocks, notify=None):
        self.task, self.new, self.given = task, list(range(self.count)), {}
        self.largest = dict.fromkeys(self.new, 0)
        for number, found in enumerate(hand_out(self, blocks)):
            if number == self.stop:
                raise KeyboardInterrupt
            yield found

    def send(self, worker, number, block):
        assert worker not in self.new
        self.given[worker, number] = block
        self.largest[worker] = max(self.largest.get(worker, 0), sum(one == worker for one, _ in self.given))

    def events(self):
        if self.new:
            ready, self.new = self.new, []
            return [Event("ready", worker) for worker in ready]
        worker = self.random.choice(sorted({worker for worker, _ in self.given}))
        number = next(number for one, number in self.given if one == worker)
        if self.deaths and self.died.count(number) < 2:
            self.deaths -= 1
            self.died.append(number)
            self.given = {key: block for key, block in self.given.items() if key[0] != worker}
            self.new.append(worker + 1000)
            return [Event("lost", worker)]
        block = self.given.pop((worker, number))
        self.blocks.append(block)
        try:
            return [Event("done", worker, number, list(self.task(block)))]
        except Exception as error:
            return [Event("done", worker, number, error)]
