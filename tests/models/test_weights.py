import re
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from rhobust.models import fill_weights
from rhobust.models.weights import WidthError, match_names, read_weights


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        self.head = nn.Linear(2, 3)


def fresh(seed, make=Network):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def filled_from(path):
    return fill_weights(fresh(1), path).state_dict()


def same(found, wanted):
    return all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.fixture
def weights():
    network = fresh(0)
    network.body[1].running_mean.add_(3)
    return network.state_dict()


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "net", "anything"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "model.backbone."])
def test_checkpoints_are_opened_under_any_key_and_prefix(weights, tmp_path, key, prefix):
    renamed = {prefix + name: tensor for name, tensor in weights.items()}
    torch.save({"epoch": 3, key: renamed, "lr": 0.1}, tmp_path / "w.pt")
    assert same(filled_from(tmp_path / "w.pt"), weights)


def test_a_bare_file_of_either_format(weights, tmp_path):
    torch.save(weights, tmp_path / "w.pth")
    torch.save(weights, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    save_file(weights, tmp_path / "w.safetensors")
    for name in ("w.pth", "old.pth", "w.safetensors"):
        assert same(filled_from(tmp_path / name), weights)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_is_read_by_its_content_whatever_it_is_called(weights, tmp_path, zipped):
    torch.save({"model": weights}, tmp_path / "weights.safetensors", _use_new_zipfile_serialization=zipped)
    assert same(filled_from(tmp_path / "weights.safetensors"), weights)
    save_file(weights, tmp_path / "weights.pt")
    assert same(filled_from(tmp_path / "weights.pt"), weights)


def test_a_header_whose_length_begins_as_a_pickle_does_is_none(tmp_path):
    for padding in range(256):
        save_file({"a" * (1 + padding): torch.ones(2)}, tmp_path / "w.pt")
        if (tmp_path / "w.pt").read_bytes()[0] == 0x80:
            break
    assert (tmp_path / "w.pt").read_bytes()[0] == 0x80
    assert read_weights(tmp_path / "w.pt")["a" * (1 + padding)].tolist() == [1, 1]


def test_a_loss_or_an_optimizer_beside_the_network_is_left_out(weights, tmp_path):
    saved = {f"net.{name}": tensor for name, tensor in weights.items()} | {"loss.weight": torch.ones(3)}
    torch.save({"state_dict": saved, "optimizer": {"state": {}}}, tmp_path / "w.ckpt")
    assert same(filled_from(tmp_path / "w.ckpt"), weights)


def test_counters_of_batch_normalisation_may_be_missing(weights, tmp_path):
    save_file({name: t for name, t in weights.items() if "num_batches" not in name}, tmp_path / "w.safetensors")
    assert torch.equal(filled_from(tmp_path / "w.safetensors")["head.weight"], weights["head.weight"])


def test_a_pickled_module_is_never_loaded(tmp_path):
    torch.save(fresh(0, lambda: nn.Linear(2, 2)), tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"holds a pickled torch.nn.modules.linear.Linear.*state_dict"):
        read_weights(tmp_path / "whole.pt")


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit(99)",))


@pytest.mark.parametrize("new", [True, False])
def test_no_code_of_a_pickle_runs(tmp_path, new):
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt", _use_new_zipfile_serialization=new)
    with pytest.raises(ValueError, match="must hold weights only"):
        read_weights(tmp_path / "evil.pt")


def test_two_networks_that_fit_are_refused(weights, tmp_path):
    both = {f"{who}.{name}": tensor for who in ("student", "teacher") for name, tensor in weights.items()}
    torch.save(both, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"but it lacks body\.0\.bias"):
        filled_from(tmp_path / "w.pt")


def test_averaged_weights_beside_the_network_are_not_passed_over(weights, tmp_path):
    averaged = {"n_averaged": torch.tensor(3)} | {f"module.{name}": tensor / 2 for name, tensor in weights.items()}
    torch.save({"model": weights, "model_ema": averaged, "epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"one state dict, but it has some of the same form under model and model_ema"):
        filled_from(tmp_path / "w.pt")
    torch.save(torch.load(tmp_path / "w.pt")["model_ema"], tmp_path / "one.pt")
    assert same(filled_from(tmp_path / "one.pt"), {name: tensor / 2 for name, tensor in weights.items()})


def test_a_file_that_was_cut_off_says_so(weights, tmp_path):
    torch.save(weights, tmp_path / "w.pt")
    whole = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="but its end is missing"):
        read_weights(tmp_path / "w.pt")


def test_mistakes_are_named(weights, tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        read_weights(tmp_path / "none.pt")
    (tmp_path / "noise.pt").write_bytes(bytes(range(200)))
    with pytest.raises(ValueError, match=r"must be a safetensors file or one of torch\.save"):
        read_weights(tmp_path / "noise.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="must hold a state dict, but it holds a list"):
        read_weights(tmp_path / "list.pt")
    torch.save({"a": weights, "b": weights}, tmp_path / "two.pt")
    with pytest.raises(ValueError, match=r"must hold one state dict.*its keys are a, b"):
        read_weights(tmp_path / "two.pt")
    torch.save({**weights, "head.weight": torch.zeros(5, 2)}, tmp_path / "wide.pt")
    with pytest.raises(ValueError, match=re.escape("head.weight has the shape (5, 2) and the network wants (3, 2)")):
        filled_from(tmp_path / "wide.pt")
    with pytest.raises(WidthError) as error:
        filled_from(tmp_path / "wide.pt")
    assert (error.value.saved, error.value.wanted) == (5, 3)
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as archive:
        archive.writestr("script/code/__torch__.py", "")
    with pytest.raises(ValueError, match="TorchScript"):
        read_weights(tmp_path / "script.pt")


names = st.lists(
    st.lists(st.sampled_from(["a", "b", "weight", "0"]), min_size=1, max_size=3).map(".".join),
    min_size=1,
    max_size=5,
    unique=True,
)
prefixes = st.sampled_from(["", "module.", "x.y.", "a."])


@given(names, prefixes, prefixes)
def test_prefixed_names_are_matched_one_to_one_or_not_at_all(wanted, theirs, ours):
    saved = [theirs + name for name in wanted]
    network = [ours + name for name in wanted]
    found = match_names(saved, network)
    if found is not None:
        assert sorted(found.values()) == sorted(saved)
        assert sorted(found) == sorted(network)
    if theirs == "module." and len({name.split(".")[0] for name in wanted}) > 1:
        assert found == dict(zip(network, saved, strict=True))
