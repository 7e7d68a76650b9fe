"""Each sample of errors is bounded once per session: a page proves every bound again, and takes a second for each."""

import functools

import numpy as np
import pytest

from rhobust.proofs import measured_shift, shift


def _once(bound):
    found = {}

    @functools.wraps(bound)
    def bounded(errors, *arguments, **options):
        key = repr((np.asarray(errors).tolist(), [np.asarray(one).tolist() for one in arguments], options))
        if key not in found:
            found[key] = bound(errors, *arguments, **options)
        return found[key]

    return bounded


@pytest.fixture(autouse=True, scope="session")
def bounded_once():
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((shift, "population_loss"), (shift, "kumar_loss"), (measured_shift, "measured_loss")):
            patch.setattr(module, name, _once(getattr(module, name)))
        yield
