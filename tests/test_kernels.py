"""The kernels of a GPU without one: run by Triton's interpreter, and compiled for GPUs that are not there."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from rhobust import noise_kernel
from rhobust.models import operators, patches_kernel
from rhobust.noise import GridTables, grid_steps, key_words, normal_rows, stream_key

triton = pytest.importorskip("triton", reason="the kernels need Triton, which torch brings along where it knows CUDA")
tl = pytest.importorskip("triton.language")

# Triton 3.9 announces how it will round from 3.10 on.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
CPU = torch.device("cpu")
INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(
    not INTERPRETER, reason="Triton interprets only if TRITON_INTERPRET=1 when it is imported: the slow test sets it"
)
compiled = pytest.mark.skipif(INTERPRETER, reason="Triton interprets, so it does not compile")


@compiled
@pytest.mark.slow
def test_the_kernels_compute_their_definitions():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "", __file__]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout


def plan_of(rows, images, places):
    plan = np.zeros((7, rows), dtype=np.int64)
    plan[0], plan[1] = np.arange(rows) % images, np.resize(places, rows)
    plan[3:] = np.array([key_words(stream_key(0, "kernel", row // 2)) for row in range(rows)]).T
    return torch.from_numpy(plan)


SHAPES = [(3, 16, 16), (1, 28, 28), (3, 7, 7), (3, 1, 1), (3, 5, 70), (1,), (2,), (1023,), (1024,), (1025,)]


@interpreted
@pytest.mark.parametrize("sigma", [0.0005, 0.25, 10.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_noisy_images_have_the_integers_of_the_definition(shape, sigma):
    size, rows, tables = int(np.prod(shape)), 5, GridTables(sigma, CPU)
    images = torch.randint(256, (3, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[0], images[1] = 0, 255
    # The last places have counters beyond 2**31, the first one has the smallest.
    plan = plan_of(rows, 3, [0, 127, 2**31 // size + 1, 2**32 // (size + 1) - 1])
    steps = grid_steps(plan[3:].T, plan[1], size, tables.thresholds)
    expected = tables.values[steps + images[plan[0]]].view(rows, *shape)
    layouts = [torch.contiguous_format, torch.channels_last] if len(shape) == 3 else [torch.contiguous_format]
    for layout in layouts:
        for pixels in (images, images.short()):
            out = torch.full((rows, *shape), torch.nan).contiguous(memory_format=layout)
            noise_kernel.write_noisy(out, pixels, plan, tables)
            assert torch.equal(out, expected)


@interpreted
def test_another_layout_of_the_noisy_images_is_refused():
    out = torch.zeros(2, 3, 4, 5).transpose(2, 3)
    with pytest.raises(ValueError, match="contiguous, or have its channels last"):
        noise_kernel.write_noisy(out, torch.zeros(3, 60, dtype=torch.uint8), plan_of(2, 3, [0]), GridTables(0.25, CPU))


@triton.jit
def _samples(out, high, low, cells, thresholds, count, SEVERAL: tl.constexpr, STEPS: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    words = tl.load(high + at).to(tl.uint32), tl.load(low + at).to(tl.uint32)
    tl.store(out + at, noise_kernel._sample(words[0], words[1], cells, thresholds, count, SEVERAL, STEPS))


@interpreted
@pytest.mark.parametrize("sigma", [0.0005, 0.02, 0.25, 2.0])
@pytest.mark.parametrize("block", [1, 64])
def test_a_sample_is_the_number_of_thresholds_that_it_reaches(sigma, block):
    tables = GridTables(sigma, CPU)
    # The least and the largest numbers, and the neighbours of each threshold.
    near = (tables.thresholds[:, None] + torch.tensor([-1, 0, 1])).flatten()
    uniform = torch.cat([near[(near >= 0) & (near < 2**62)], torch.tensor([0, 1, 2**62 - 1])])
    if block == 1:  # each block holds one number, whose cell alone decides how it is found
        uniform = uniform[:: len(uniform) // 97 + 1]
    uniform = torch.cat([uniform, uniform[:1].expand(-len(uniform) % block)])
    out, count = torch.full(uniform.shape, -1, dtype=torch.int32), len(tables.thresholds)
    words = uniform >> 30, (uniform << 2) & (2**32 - 1)
    steps = count.bit_length()
    _samples[(len(uniform) // block,)](
        out, *words, tables.cells, tables.thresholds, count, tables.SEVERAL, steps, block
    )
    assert torch.equal(out.long(), torch.bucketize(uniform, tables.thresholds, right=True))


@interpreted
@pytest.mark.parametrize(("draws", "streams", "size"), [(1, 1, 1), (3, 5, 1001), (2, 2, 1024), (2, 3, 1026), (7, 1, 6)])
def test_normal_samples_are_those_of_the_definition(draws, streams, size):
    keys = [stream_key(0, "normal", index) for index in range(streams)]
    words, before = torch.tensor([key_words(key) for key in keys]), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        drawn = noise_kernel.normal_rows(words, draws, size)
    finally:
        torch.set_default_dtype(before)
    assert drawn.dtype == torch.float32
    assert torch.allclose(drawn, normal_rows(keys, draws, size, "cpu"), atol=1e-5)


@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("shape", "kernel", "padding"),
    [
        ((2, 3, 9, 7), (3, 3), (1, 1)),
        ((1, 1, 12, 12), (5, 5), (2, 2)),
        ((2, 2, 4, 5), (4, 3), (3, 0)),
        ((2, 3, 5, 4), (1, 9), (0, 4)),
        ((129, 32, 1, 1), (1, 1), (0, 0)),
        ((1, 3, 3, 7), (3, 3), (4, 5)),
    ],
)
def test_patches_are_those_of_the_definition(shape, kernel, padding, dtype):
    count, channels, height, width = shape
    whole = torch.randn(2 * count, channels + 1, height, 2 * width, generator=torch.Generator().manual_seed(0)).to(
        dtype
    )
    x = whole[::2, 1:, :, ::2]
    layouts = x, x.contiguous(), x.contiguous(memory_format=torch.channels_last), x[:1, :, :1].expand(shape)
    for images in layouts:
        found = patches_kernel.image_patches(images, kernel, padding, operators.PATCH)
        assert torch.equal(found, operators._plain_patches(images, list(kernel), list(padding)))


NOISY = {"plan": "*i64", "cells": "*i32", "thresholds": "*i64", "values": "*fp32", "count": "i32", "rows": "i32"}
LARGE = {"size": 3072, "plane": 1024, "inner": 3, "SEVERAL": GridTables.SEVERAL, "STEPS": 12}
SIDES = {"height": 32, "width": 32, "rows": 32, "columns": 32, "used": 27, "high": 3, "wide": 3, "above": 1, "left": 1}
STRIDES = dict.fromkeys(("total", "image_stride", "channel_stride", "row_stride"), "i32")
KERNELS = {
    "noise": (
        noise_kernel._noisy,
        {"out": "*fp32", "images": "*u8", **NOISY},
        {**LARGE, "PAIRS": noise_kernel.PAIRS},
    ),
    "noise of float images": (
        noise_kernel._noisy,
        {"out": "*fp32", "images": "*i16", **NOISY},
        {**LARGE, "size": 5, "plane": 5, "inner": 1, "PAIRS": noise_kernel.PAIRS},
    ),
    "normal noise": (
        noise_kernel._normal,
        {"out": "*fp32", "keys": "*i64", "streams": "i32", "size": "i32"},
        {"GROUPS": noise_kernel.GROUPS},
    ),
    "normal noise, one sample": (
        noise_kernel._normal,
        {"out": "*fp32", "keys": "*i64"},
        {"streams": 1, "size": 1, "GROUPS": noise_kernel.GROUPS},
    ),
    "patches": (
        patches_kernel._patches,
        {"out": "*bf16", "x": "*bf16", **STRIDES, "column_stride": "i32"},
        {**SIDES, "SIZE": operators.PATCH, "PIXELS": patches_kernel.PIXELS},
    ),
    "patches, channels first": (
        patches_kernel._patches,
        {"out": "*bf16", "x": "*bf16", **STRIDES},
        {"column_stride": 1, **SIDES, "SIZE": operators.PATCH, "PIXELS": patches_kernel.PIXELS},
    ),
}


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_compile_for_gpus_that_are_not_there(name, capability, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, types, constants = KERNELS[name]
    places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = triton.compiler.ASTSource(kernel, {**types, **dict.fromkeys(constants, "constexpr")}, places)
    assert set(types) | set(constants) == set(kernel.arg_names)
    built = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", capability, 32))
    assert built.asm["cubin"]
