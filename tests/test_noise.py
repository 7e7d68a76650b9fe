import subprocess
import sys
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rhobust.noise import (
    LEVELS,
    BatchNoise,
    ExampleNoise,
    GridTables,
    grid_block,
    grid_deviation,
    grid_steps,
    grid_thresholds,
    grid_values,
    key_words,
    noisy_copies,
    normal_block,
    normal_rows,
    philox,
    stream,
    stream_key,
)


def test_different_names_give_different_keys():
    names = [(0,), (1,), (0, "a"), (0, "a", 1), (0, "a", 11), (0, "a1", 1), (0, "a", "1"), (0, "a", 1, 1), (0, "b")]
    assert len({stream_key(*name) for name in names}) == len(names)


def test_a_key_has_128_bits():
    # With 32 bits, thousands of streams would collide and their noise would not be independent.
    ones, zeros = 0, 0
    for number in range(200):
        ones, zeros = ones | stream_key(0, "a", number), zeros | ~stream_key(0, "a", number)
    assert ones == 2**128 - 1
    assert zeros & (2**128 - 1) == 2**128 - 1


def test_a_name_is_the_number_and_not_its_type():
    # Indices come as numpy's integers too: the same example must get the same noise.
    assert stream_key(np.int64(3), "count", np.int32(17)) == stream_key(3, "count", 17)


def test_a_stream_is_decided_by_its_name():
    first = torch.randn(5, generator=stream(3, "order", 1))
    assert torch.equal(first, torch.randn(5, generator=stream(3, "order", 1)))
    assert not torch.equal(first, torch.randn(5, generator=stream(3, "order", 2)))


@pytest.mark.parametrize("block", [normal_block, lambda key, shape: grid_block(key, shape, 0.25)])
def test_keys_that_agree_in_their_low_32_bits_give_different_noise(block):
    # Torch's CPU generator would give the same draws for both; a certificate needs independent ones.
    assert not torch.equal(block(7, (4, 8)), block(7 + 2**32, (4, 8)))
    assert torch.equal(block(7, (4, 8)), block(7, (4, 8)))


@given(st.permutations(range(6)), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_order_and_batch_size_do_not_change_a_draw(order, batch_size):
    x = torch.zeros(6, 1, 2, 2)
    whole = ExampleNoise(0, "test", range(6)).normal(x, 3)
    for start in range(0, 6, batch_size):
        names = list(order[start : start + batch_size])
        part = ExampleNoise(0, "test", names).normal(x[: len(names)], 3)
        assert torch.equal(part, whole[:, names])


def test_another_process_draws_the_same():
    code = (
        "from rhobust.noise import grid_block, normal_block, stream_key; key = stream_key(3, 'certify', 17, 2); "
        "print(normal_block(key, (4, 5)).tolist(), grid_block(key, (4, 5), 0.25).tolist())"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    key = stream_key(3, "certify", 17, 2)
    assert output == f"{normal_block(key, (4, 5)).tolist()} {grid_block(key, (4, 5), 0.25).tolist()}\n"


def test_every_call_draws_fresh_noise():
    x = torch.zeros(2, 3)
    noise = ExampleNoise(0, "test", [4, 5])
    first, second = noise.normal(x, 2), noise.normal(x, 2)
    assert not torch.equal(first, second)
    assert not torch.equal(first, ExampleNoise(0, "other", [4, 5]).normal(x, 2))


def test_no_example_shares_its_noise_with_another():
    def drawn(seed, purpose, index):
        return ExampleNoise(seed, purpose, [index]).normal(torch.zeros(1, 3), 2)

    first = drawn(0, "attack", 1)
    assert torch.equal(first, drawn(0, "attack", 1))
    for other in ((0, "attack", 2), (1, "attack", 1), (0, "vote", 1)):
        assert not (first == drawn(*other)).any()


def test_wrong_number_of_indices_is_refused():
    with pytest.raises(ValueError, match="one row per index"):
        ExampleNoise(0, "test", [1]).normal(torch.zeros(2, 3), 1)


def test_noisy_copies_stand_draw_by_draw():
    x = torch.arange(3.0).view(3, 1)
    copies = noisy_copies(x, 1e-6, 2, BatchNoise(stream(0, "copies")))
    assert copies.shape == (6, 1)
    assert torch.allclose(copies.flatten(), torch.tensor([0.0, 1, 2, 0, 1, 2]), atol=1e-4)


def test_normal_noise_is_standard_normal():
    draws = normal_block(stream_key(0, "ks"), (100_000,)).numpy()
    # A Kolmogorov-Smirnov test at a fixed seed; its false-alarm rate over seeds would be 1e-3.
    assert stats.kstest(draws, "norm").pvalue > 1e-3


@pytest.mark.parametrize("sigma", [0.004, 0.1, 0.25, 1.0])
def test_grid_noise_follows_its_law(sigma):
    draws = grid_block(stream_key(1, "law", int(1e4 * sigma)), (200_000,), sigma).numpy().astype(int)
    scale = 255 * sigma
    values, counts = np.unique(draws, return_counts=True)
    edges = np.arange(values[0], values[-1] + 1)
    expected = len(draws) * (stats.norm.cdf((edges + 0.5) / scale) - stats.norm.cdf((edges - 0.5) / scale))
    observed = np.zeros(len(edges))
    observed[values - values[0]] = counts
    big = expected >= 10
    statistic = np.sum((observed[big] - expected[big]) ** 2 / expected[big])
    # Chi-square at a fixed seed; its false-alarm rate over seeds would be 1e-4.
    assert stats.chi2.sf(statistic, big.sum() - 1) > 1e-4
    assert abs(draws.mean()) < 5 * scale / np.sqrt(len(draws))


def test_grid_table_is_exact_to_its_resolution():
    from rhobust.noise import _grid_table

    table = _grid_table(0.25)
    with mpmath.workdps(40):
        for position in range(0, len(table.thresholds), 37):
            k = table.first + position
            exact = mpmath.ncdf((k + mpmath.mpf("0.5")) / (255 * mpmath.mpf(0.25))) * 2**62
            assert abs(int(table.thresholds[position]) - exact) <= 0.5
    assert np.all(table.thresholds == 2**62 - table.thresholds[::-1])
    assert grid_deviation(0.25) < 1e-15


@pytest.mark.parametrize("sigma", [0.001, 0.01, 0.1])
def test_the_deviation_covers_the_tables_whole_distance_from_its_law(sigma):
    from rhobust.noise import _grid_table

    table = _grid_table(sigma)
    with mpmath.workdps(40):
        # Mass of the integers up to each threshold, in the table and in truth; beyond the table there is none.
        edges = range(table.first, table.first + len(table.thresholds))
        exact = [mpmath.ncdf((k + mpmath.mpf("0.5")) / (255 * mpmath.mpf(sigma))) for k in edges]
        found = [mpmath.mpf(int(threshold)) / 2**62 for threshold in table.thresholds]
        beyond = mpmath.ncdf((table.first - mpmath.mpf("0.5")) / (255 * mpmath.mpf(sigma)))
        masses = [[*law, mpmath.mpf(1)] for law in (exact, found)]
        cells = [[law[0], *(b - a for a, b in pairwise(law))] for law in masses]
        distance = sum(abs(a - b) for a, b in zip(*cells, strict=True)) / 2 + 2 * beyond
    assert distance <= grid_deviation(sigma) <= 2**-62 * (len(table.thresholds) + 2)


def test_the_look_up_agrees_with_the_search():
    from rhobust.noise import _AMBIGUOUS, _BITS, _COARSE, _grid_table

    table = _grid_table(0.1)
    rng = np.random.Generator(np.random.PCG64(0))
    uniform = rng.integers(0, 2**_BITS, 50_000, dtype=np.uint64)
    coarse = table.coarse[uniform >> np.uint64(_BITS - _COARSE)]
    decided = coarse != _AMBIGUOUS
    assert decided.mean() > 0.98
    assert np.array_equal(coarse[decided], table.search(uniform)[decided])


def test_pieces_of_a_block_are_one_stream():
    from rhobust.noise import _BITS, _PIECE, _grid_table

    size = 2 * _PIECE + 5
    raw = np.random.SFC64(np.random.SeedSequence(77)).random_raw(size)
    expected = _grid_table(0.25).search(raw >> np.uint64(64 - _BITS))
    assert np.array_equal(grid_block(77, (size, 1), 0.25).numpy()[:, 0], expected)
    assert grid_block(77, (0, 4), 0.25).shape == (0, 4)


@pytest.mark.parametrize("sigma", [0, -1, 11, float("nan")])
def test_grid_noise_refuses_a_bad_sigma(sigma):
    with pytest.raises(ValueError, match="sigma must be in"):
        grid_block(0, (2,), sigma)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # The known answers of Random123 for philox4x32-10.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_known_answers(counter, key, words):
    found = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(word.item() for word in found) == words


def steps(names, rows, size, sigma=0.25):
    keys = torch.tensor([key_words(stream_key(0, "test", name)) for name in names])
    return grid_steps(keys, torch.tensor(rows), size, grid_thresholds(sigma, "cpu"))


def test_all_62_bits_of_a_counter_stream_are_compared():
    key = stream_key(0, "test", 5)
    words = key_words(key)
    place = torch.tensor([[3 * 2]])  # row 3 of rows of four numbers, two to a counter
    zero = torch.zeros_like(place)
    found = philox((place, zero, zero + words[2], zero + words[3]), tuple(torch.tensor([[w]]) for w in words[:2]))
    for column, (high, low) in enumerate((found[:2], found[2:])):
        uniform = (int(high) << 30) | (int(low) >> 2)
        for threshold, passed in ((uniform, 1), (uniform + 1, 0)):
            steps = grid_steps(torch.tensor([words]), torch.tensor([3]), 4, torch.tensor([threshold]))
            assert int(steps[0, column]) == passed


def test_a_row_of_a_counter_stream_is_drawn_alone():
    whole = steps([5] * 40, range(40), 33)
    assert torch.equal(steps([5, 5], [17, 3], 33), whole[[17, 3]])
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(steps([6], [0], 33), whole[:1])
    # All 128 bits of a key count.
    for word in range(4):
        keys = torch.tensor([key_words(2 ** (32 * word))])
        zero = grid_steps(
            torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), 33, grid_thresholds(0.25, "cpu")
        )
        assert not torch.equal(
            grid_steps(keys, torch.zeros(1, dtype=torch.int64), 33, grid_thresholds(0.25, "cpu")), zero
        )


@pytest.mark.parametrize("sigma", [0.01, 0.25])
def test_counter_streams_have_the_law_of_the_grid(sigma):
    # 400,000 draws in at most 21 cells: chi-square fails with probability 1e-6 over seeds.
    draws = steps([1] * 4000, range(4000), 100, sigma) - len(grid_thresholds(sigma, "cpu")) // 2
    scale = LEVELS * sigma
    edges = np.unique(np.round(np.linspace(-2.5, 2.5, 20) * scale)) + 0.5
    observed = np.bincount(np.searchsorted(edges, draws.numpy().ravel()), minlength=len(edges) + 1)
    expected = np.diff(np.concatenate([[0], stats.norm.cdf(edges / scale), [1]])) * 400_000
    assert stats.chisquare(observed, expected).pvalue > 1e-6


def test_the_values_are_those_of_image_plus_noise():
    values, first = grid_values(0.25, "cpu"), -(len(grid_thresholds(0.25, "cpu")) // 2)
    pixels, noise = torch.tensor([0, 17, 255]), torch.tensor([first, 3, -first])
    assert torch.equal(values[pixels + noise - first], (pixels + noise).float() / LEVELS)
    assert len(values) == LEVELS + 2 * -first + 1


def kernel_steps(high, low, sigma):
    """The integer operations of the GPU's kernel: a look-up, one comparison, and a search where a cell has several."""
    tables = GridTables(sigma, torch.device("cpu"))
    cells, thresholds, count = tables.cells.numpy(), tables.thresholds.numpy(), len(tables.thresholds)
    uniform = (high.astype(np.int64) << 30) | (low.astype(np.int64) >> 2)
    cell = cells[high >> 16]
    found = cell & (GridTables.SEVERAL - 1)
    found = found + ((uniform >= thresholds[np.minimum(found, count - 1)]) & (found < count))
    first, last = np.zeros(len(uniform), dtype=np.int64), np.full(len(uniform), count)
    for _ in range(count.bit_length()):
        middle = (first + last) // 2
        reached = thresholds[np.minimum(middle, count - 1)] <= uniform
        inside = first < last
        first, last = np.where(inside & reached, middle + 1, first), np.where(inside & ~reached, middle, last)
    return np.where(cell >= GridTables.SEVERAL, first, found), uniform


@pytest.mark.parametrize("sigma", [0.001, 0.02, 0.25, 2.0])
def test_the_kernel_of_a_gpu_draws_the_integers_of_the_definition(sigma):
    rng = np.random.default_rng(0)
    thresholds = grid_thresholds(sigma, "cpu")
    # Random numbers, the least and the largest ones, and the neighbours of each threshold.
    near = (thresholds.numpy()[:, None] + np.array([-1, 0, 1])).flatten()
    near = near[(near >= 0) & (near < 2**62)]
    high = np.concatenate([rng.integers(2**32, size=20_000), [0, 0, 2**32 - 1, 2**32 - 1], near >> 30])
    low = np.concatenate([rng.integers(2**32, size=20_000), [0, 2**32 - 1, 0, 2**32 - 1], (near << 2) & 0xFFFFFFFF])
    steps, uniform = kernel_steps(high, low, sigma)
    assert np.array_equal(steps, torch.bucketize(torch.from_numpy(uniform), thresholds, right=True).numpy())


def test_noisy_images_are_written_in_any_layout_and_in_parts(monkeypatch):
    plan = np.zeros((7, 5), dtype=np.int64)
    plan[0], plan[1] = [0, 2, 1, 1, 0], [0, 5, 127, 3, 3]
    plan[3:] = np.array([key_words(stream_key(0, "write", row)) for row in range(5)]).T
    images = torch.randint(256, (3, 48), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    plan, tables = torch.from_numpy(plan), GridTables(0.25, torch.device("cpu"))
    steps = grid_steps(plan[3:].T, plan[1], 48, tables.thresholds)
    expected = tables.values[steps + images[plan[0]]].view(5, 3, 4, 4)
    for part in (GridTables.PART, 100):
        monkeypatch.setattr(GridTables, "PART", part)
        for layout in (torch.contiguous_format, torch.channels_last):
            out = torch.full((5, 3, 4, 4), torch.nan).contiguous(memory_format=layout)
            tables.write_noisy(out, images, plan)
            assert torch.equal(out, expected)


def test_normal_rows_are_standard_normal_and_belong_to_their_stream():
    keys = [stream_key(0, "rows", index) for index in range(4)]
    drawn = normal_rows(keys, 50, 1001, "cpu")
    assert drawn.shape == (50, 4, 1001)
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-4
    assert drawn.abs().max() > 4
    assert abs(np.corrcoef(drawn[:, :, 0::2][..., :500].flatten(), drawn[:, :, 1::2].flatten())[0, 1]) < 0.015
    assert abs(np.corrcoef(drawn[:, 0].flatten(), drawn[:, 1].flatten())[0, 1]) < 0.03
    assert torch.equal(normal_rows(keys[2:3], 50, 1001, "cpu")[:, 0], drawn[:, 2])
    assert torch.equal(normal_rows(keys, 3, 1001, "cpu"), drawn[:3])
