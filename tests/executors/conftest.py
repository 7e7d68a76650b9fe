"""A target with known answers."""

import pytest

from rhobust.evaluation import Target


@pytest.fixture
def target(half_space, grey_images, tmp_path):
    return Target(half_space, grey_images, sigma=0.25, name="half-space", folder=tmp_path, model_hash="0" * 16)
