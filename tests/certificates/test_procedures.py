"""What an audit takes from each procedure to certify: counts that its test could have ended with, and no others."""

import numpy as np
import pytest

from rhobust.certificates import Fixed, Sequential, TwoStage
from rhobust.proofs.procedures import ClassVotes

RADII = (0.0, 0.25)


@pytest.fixture(params=["pairwise", "boundary", "e-value"])
def plan(request):
    return Sequential(RADII, n0=50, n=3000, stopping=request.param).plan(0.25, 0.01)


def ended(plan, share, rivals=1.0, top=50):
    """A course of the test in which this share of the votes is for the class: counts, draws and evidence.

    The runner-up has the part `rivals` of the other votes.
    """
    reached, evidence, draws = np.array([0]), [], plan.first_look(np.array([50]))
    while True:
        count = np.floor(share * draws).astype(int)
        runner_up = np.ceil(rivals * (draws - count)).astype(int)
        now, later = plan.look(ClassVotes(np.array([top]), count, runner_up, draws), reached)
        step = (int(draws[0]), int(count[0]), int(runner_up[0]))[: 3 if plan.compares else 2]
        evidence += [step] * int(now[0] - reached[0])
        if later[0] == draws[0]:
            return int(count[0]), int(draws[0]), evidence
        reached, draws = now, later


def audited(plan, top, count, draws, evidence, runner_up=None):
    """Why the counts of one input cannot come from a plan."""
    counts = (np.array([one]) for one in (top, count, draws - count if runner_up is None else runner_up, draws))
    [reason] = plan.audit(ClassVotes(*counts), [evidence])
    return reason


@pytest.mark.parametrize("share", [1.0, 0.9, 0.7, 0.3])
def test_a_course_of_the_grid_passes(plan, share):
    assert audited(plan, 50, *ended(plan, share)) is None


def test_votes_that_selected_the_class_are_among_those_counted():
    plan = Sequential(RADII, n=3000).plan(0.25, 0.01)
    first = int(plan.first_look(np.zeros(1))[0])
    count, draws, evidence = ended(plan, 0.9, top=int(0.9 * first))
    assert audited(plan, int(0.9 * first), count, draws, evidence) is None
    assert "must follow the one before" in audited(plan, evidence[0][1] + 1, count, draws, evidence)
    assert "must follow the last step" in audited(plan, first, 20, first, [])


def test_a_grid_ends_at_a_look_and_not_before_its_time(plan):
    count, draws, evidence = ended(plan, 0.88)
    assert "must stop at a look" in audited(plan, 50, count + 1, draws + 1, evidence)
    # After the first radius was proved the second was neither proved nor given up.
    first = evidence[0]
    assert first[0] < draws
    assert "do not end the test" in audited(plan, 50, first[1], first[0], evidence[:1])
    # Fewer radii than the votes prove, or more.
    assert audited(plan, 50, count, draws, evidence[:-1]) is not None
    assert audited(plan, 50, count, draws, [*evidence, (draws, count, draws - count)[: len(first)]]) is not None


@pytest.mark.parametrize(
    "procedure", [Fixed(n0=50, n=500), TwoStage(n0=100, n=3000)], ids=lambda procedure: procedure.name
)
def test_a_count_after_a_fixed_number_of_draws_has_no_steps(procedure):
    plan = procedure.plan(0.25, 0.01)
    draws = int(plan.first_look(np.array([procedure.n0]))[0])
    assert audited(plan, procedure.n0, draws, draws, []) is None
    assert "must use" in audited(plan, procedure.n0, draws, draws - 1, [])
    assert "must have no steps" in audited(plan, procedure.n0, draws, draws, [(draws, draws)])
