"""What an audit takes from each procedure to certify: counts that its test could have ended with, and no others."""

import numpy as np
import pytest

from rhobust.certificates import Fixed, Sequential, TwoStage
from rhobust.proofs.plan import ClassVotes

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


def test_votes_for_many_classes_prove_what_the_class_alone_does_not():
    pairs, alone = (Sequential(RADII, n=20_000, stopping=one).plan(0.25, 0.01) for one in ("pairwise", "boundary"))
    first = int(pairs.first_look(np.zeros(1))[0])
    top = int(0.46 * first)
    count, draws, evidence = ended(pairs, 0.46, 0.3, top)
    runner_up = int(np.ceil(0.3 * (draws - count)))
    assert len(evidence) == 1
    assert not ended(alone, 0.46, 0.3, top)[2]
    assert audited(pairs, top, count, draws, evidence, runner_up) is None
    votes = ClassVotes(*(np.array([one]) for one in (top, count, runner_up, draws)))
    claims = pairs.claims(votes, [evidence])
    # The radius is proved, and no probability: the class has fewer than half of the votes.
    assert (claims.proved[0], claims.radius[0], claims.p_lower[0]) == (True, 0.0, 0.0)
    # With more votes for the runner-up the same votes for the class prove nothing.
    worse = [(*evidence[0][:2], int(0.9 * (evidence[0][0] - evidence[0][1])))]
    assert "do not prove the radius 0" in audited(pairs, top, count, draws, worse, int(0.9 * (draws - count)))


def test_votes_of_the_runner_up_must_follow_each_other():
    plan = Sequential(RADII, n=20_000).plan(0.25, 0.01)
    top = int(0.83 * int(plan.first_look(np.zeros(1))[0]))
    count, draws, evidence = ended(plan, 0.83, 0.4, top)
    runner_up = int(np.ceil(0.4 * (draws - count)))
    assert len(evidence) == 2
    assert evidence[0][0] < evidence[1][0]
    assert audited(plan, top, count, draws, evidence, runner_up) is None
    assert "at the end must follow" in audited(plan, top, count, draws, evidence, evidence[-1][2] - 1)
    fewer = [evidence[0], (*evidence[1][:2], evidence[0][2] - 1)]
    assert "step 1 must follow the one before" in audited(plan, top, count, draws, fewer, runner_up)
    more = [evidence[0], (*evidence[1][:2], evidence[1][0] - evidence[1][1] + 1)]
    assert "step 1 must follow the one before" in audited(plan, top, count, draws, more, runner_up)
    short = [step[:2] for step in evidence]
    assert "step 0 must have 3 numbers, got 2" in audited(plan, top, count, draws, short, runner_up)
