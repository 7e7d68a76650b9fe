"""Images as people have them become the canonical tensor, or are refused with a line that says what to pass."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import rhobust
from rhobust.certificates import SmoothedClassifier, certify_shift
from rhobust.data import Dataset, as_dataset, as_inputs
from rhobust.models import Normalised


def pixels(n=4, channels=3, height=6, width=5, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (n, channels, height, width), dtype=np.uint8))


def backwards(array):
    return np.ascontiguousarray(array[::-1])[::-1]


def frozen_array(array):
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS = {"NCHW": lambda x: x, "NHWC": lambda x: x.permute(0, 2, 3, 1)}
KINDS = {
    "uint8 tensor": lambda x: x,
    "uint8 array": lambda x: x.numpy(),
    "read-only array": lambda x: frozen_array(x.numpy()),
    "array with negative strides": lambda x: backwards(x.numpy()),
    "float32 tensor": lambda x: x.float() / 255,
    "float64 array": lambda x: x.numpy() / 255,
    "float64 to float32": lambda x: (x.numpy() / 255).astype(np.float32),
    "times a reciprocal": lambda x: x.float() * (1 / 255),
    "big-endian array": lambda x: (x.numpy() / 255).astype(">f8"),
    "array of long doubles": lambda x: x.numpy().astype(np.longdouble) / 255,
    "list of arrays": lambda x: list(x.numpy()),
    "list of float tensors": lambda x: list(x.float() / 255),
    "tuple of uint8 tensors": lambda x: tuple(x),
}


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
    height=st.integers(4, 9),
    width=st.integers(4, 9),
    layout=st.sampled_from(list(LAYOUTS)),
    kind=st.sampled_from(list(KINDS)),
    seed=st.integers(0, 99),
)
def test_every_layout_and_type_gives_the_same_data(n, channels, height, width, layout, kind, seed):
    x = pixels(n, channels, height, width, seed)
    made = as_dataset(KINDS[kind](LAYOUTS[layout](x)), list(range(n)))
    assert torch.equal(made.images, x)
    assert made.labels.tolist() == list(range(n))
    assert made.fingerprint() == as_dataset(x, torch.arange(n)).fingerprint()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("list of arrays", "tuple of uint8 tensors")])
def test_one_image_is_a_batch_of_one(layout, kind):
    x = pixels(1)
    given = KINDS[kind](LAYOUTS[layout](x))[0]
    assert torch.equal(as_dataset(given, 2).images, x)
    assert as_dataset(given, [2]).labels.tolist() == [2]


def test_grey_images_need_no_channels():
    x = pixels(5, 1)
    assert torch.equal(as_dataset(x[:, 0], range(5)).images, x)
    assert torch.equal(as_dataset(x[0, 0].numpy(), 0).images, x[:1])
    three = pixels(3, 1)
    assert torch.equal(as_dataset(three[:, 0].numpy(), [0, 1, 1]).images, three), "three labels: three grey images"
    assert as_dataset(pixels(1)[0], 1).shape == (3, 6, 5), "one label: one image in colour"


def test_pillow_images():
    x = pixels(3)
    images = [Image.fromarray(one) for one in x.permute(0, 2, 3, 1).numpy()]
    assert torch.equal(as_dataset(images, [0, 1, 2]).images, x)
    assert torch.equal(as_dataset(images[0], 0).images, x[:1])
    assert as_dataset(images[0].convert("L"), 0).shape == (1, 6, 5)
    assert torch.equal(as_dataset(images[0].convert("RGBA"), 0).images, x[:1]), "transparency is dropped"
    with pytest.raises(ValueError, match="images must have 8 bits per channel, got Pillow's mode F"):
        as_dataset(images[0].convert("F"), 0)
    with pytest.raises(ValueError, match="images must have one shape, got 3x6x5 and 1x6x5; resize or convert"):
        as_dataset([images[0], images[1].convert("L")], [0, 1])


def loader_of(data, **options):
    """A loader with a generator of its own: torch's default one would draw from the global generator."""
    return torch.utils.data.DataLoader(data, generator=torch.Generator().manual_seed(1), **options)


class Photos(torch.utils.data.Dataset):
    """A data set as torchvision has them: Pillow images, class numbers, names of the classes."""

    classes = ("cat", "dog")

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return Image.fromarray(self.x[index].permute(1, 2, 0).numpy()), index % 2


class PlainPhotos:
    """The same without torch's class, and with items as those of Hugging Face."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        image, label = Photos(pixels(6))[index]
        return {"image": image, "label": label}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(one, torch.tensor(1)) for one in pixels(3)])


def test_data_sets_and_loaders_of_torch():
    x = pixels(6)
    made = as_dataset(Photos(x))
    assert torch.equal(made.images, x)
    plain = as_dataset(PlainPhotos())
    assert torch.equal(plain.images, x)
    assert plain.labels.tolist() == [0, 1] * 3
    assert (made.labels.tolist(), made.classes) == ([0, 1] * 3, ("cat", "dog"))
    floats = torch.utils.data.TensorDataset(x.float() / 255, torch.arange(6))
    loader = loader_of(floats, batch_size=4)
    assert torch.equal(as_dataset(loader).images, x)
    assert as_dataset(loader).labels.tolist() == list(range(6))
    made = as_dataset(loader_of(floats, batch_size=4, shuffle=True))
    assert torch.equal(made.images, x[made.labels]), "labels go with their images"
    assert torch.equal(as_dataset(Stream()).images, pixels(3))
    assert len(as_dataset(loader, limit=5)) == len(as_dataset(floats, limit=5)) == 5
    dicts = [{"img": one, "label": number} for number, one in enumerate(x)]
    assert torch.equal(as_dataset(dicts).images, x)


def test_a_data_set_a_name_a_file_and_a_folder(tmp_path):
    digits = rhobust.load("digits", "test")
    assert as_dataset("digits").fingerprint() == as_dataset(digits).fingerprint() == digits.fingerprint()
    assert len(as_dataset("digits", limit=7)) == 7
    assert as_dataset(digits, name="mine", class_names="abcdefghij").classes[3] == "d"
    for label in ("dark", "bright"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(12):
            image = Image.fromarray(pixels(1, seed=number)[0].permute(1, 2, 0).numpy())
            image.save(tmp_path / "photos" / label / f"{number}.png")
    made = as_dataset(tmp_path / "photos", split="test")
    assert set(made.classes) == {"dark", "bright"}
    assert torch.equal(as_dataset(tmp_path / "photos" / "dark" / "2.png", "dark").images, pixels(1, seed=2))
    files = [str(tmp_path / "photos" / "dark" / f"{number}.png") for number in (2, 3)]
    made = as_dataset(files, ["dark", "bright"])
    assert torch.equal(made.images, torch.cat([pixels(1, seed=number) for number in (2, 3)]))
    with pytest.raises(ValueError, match=r"none\.png must be an image file, but there is no such file"):
        as_dataset([*files, "none.png"], [0, 1, 1])
    with pytest.raises(ValueError, match="labels must be left out for digits, which has its own"):
        as_dataset("digits", [1])


def test_labels_may_be_names():
    made = as_dataset(pixels(3), ["dog", "cat", "dog"])
    assert (made.labels.tolist(), made.classes) == ([1, 0, 1], ("cat", "dog"))
    made = as_dataset(pixels(3), np.array(["dog", "cat", "dog"]), class_names=("dog", "cat", "bird"))
    assert (made.labels.tolist(), made.num_classes) == ([0, 1, 0], 3)


def test_names_in_another_order_move_the_labels_and_new_names_only_rename(tmp_path):
    x = pixels(3)
    for label, image in zip(("bright", "dark", "grey"), x, strict=True):
        (tmp_path / "test" / label).mkdir(parents=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "test" / label / "0.png")

    class Own(torch.utils.data.Dataset):
        classes = ("bright", "dark", "grey")

        def __len__(self):
            return 3

        def __getitem__(self, place):
            return x[place], place

    def named(source, names):
        made = as_dataset(source, class_names=names)
        return {
            made.classes[label]: image.numpy().tobytes() for image, label in zip(made.images, made.labels, strict=True)
        }, made

    expected = {label: image.numpy().tobytes() for label, image in zip(Own.classes, x, strict=True)}
    for source in (tmp_path, Own()):
        for names in (("dark", "grey", "bright"), ("none", "grey", "bright", "dark")):
            found, made = named(source, names)
            assert (found, made.classes) == (expected, names)
        for names in (("hell", "dunkel", "grau"), ("bright", "dunkel", "grey")):
            assert named(source, names)[0] == {new: expected[old] for old, new in zip(Own.classes, names, strict=True)}
        # One name is misspelt: the others would be given to the wrong images.
        with pytest.raises(ValueError, match=r"class_names must hold all classes .* got dark at place 0 and no bright"):
            named(source, ("dark", "grey", "brihgt"))


NORMALISED = r"images must be in \[0, 1\], got values from -0\.5 to 0\.5: they look normalised; pass them in \[0, 1\]"


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (pixels() / 255 - 0.5, [0] * 4, NORMALISED),
        (pixels().float(), [0] * 4, r"they look like 0\.\.255: pass them as uint8, or divided by 255"),
        (pixels() / 100, [0] * 4, r"scale them to \[0, 1\]"),
        (pixels().float() * 257, [0] * 4, "divide them by their largest possible value"),
        (pixels() / 255 * np.nan, [0] * 4, r"images must be in \[0, 1\], got values from nan"),
        (pixels().int(), [0] * 4, "images must be uint8 or floating point, got int32: pass uint8"),
        (pixels() / 256, [0] * 4, r"images must be 8-bit, uint8 or multiples of 1/255, .* round them with"),
        ((pixels() / 255).half(), [0] * 4, "images must be 8-bit"),
        (pixels(5, 3, 3, 3), [0] * 5, r"got \(5, 3, 3, 3\): either axis may be the channels; pass layout='NCHW'"),
        (pixels(5, 4, 8, 8), [0] * 5, "no axis has 1 or 3 channels; pass layout='NCHW' or layout='NHWC'"),
        (pixels()[:0], [], "images must be a batch of images or one image"),
        (pixels(), None, "labels must be given, one class number per image"),
        (pixels(), [0, 1], r"labels must be one per image, got \(2,\) for 4 images"),
        (pixels(), torch.zeros(4, 10), r"labels must be class numbers, got the shape \(4, 10\): pass labels.argmax"),
        (pixels(), [0.0, 1.0, 1.0, 1.0], "labels must be integers or names of classes, got float64"),
        (pixels(), [-1, 0, 1, 1], r"labels must be 0, 1, 2, \.\.\., got -1 to 1"),
        (pixels(), [0, 1, 1, 10**6], "labels must be 0, 1, 2, .*, got 0 to 1000000: at most 100,000 classes"),
        (
            pixels(),
            np.array([0, 1, 1, 2**64 - 1], np.uint64),
            "labels must be 0, 1, 2, .*, got 0 to 18446744073709551615",
        ),
        (3.5, None, "images must be an array, a tensor, Pillow images, .* got a float"),
        ({"x": pixels()}, None, "images must be an array, .* got a dict"),
        (np.array(["a"]), [0], "images must be an array, .* got an array of <U1"),
        ([], None, "images must hold at least one image, got none"),
        ([(pixels()[0], 1)], [1], "labels must be left out where images come with labels, got both"),
        ([(pixels()[0], 1, 2)], None, r"images must come as \(image, label\), got 3 values"),
        ([{"picture": 1}], None, "images must have a key out of image, img"),
        ([pixels()[0], pixels()[0] / 255], [0, 1], "images must have one type, got torch.uint8 and torch.float32"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(images, labels, message):
    with pytest.raises(ValueError, match=message) as refusal:
        as_dataset(images, labels)
    assert "\n" not in str(refusal.value)


def test_one_image_file_is_no_data_with_labels(tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "one.png")
    with pytest.raises(ValueError, match=r"one\.png must be data with labels, .* predict and certify take images"):
        as_dataset(tmp_path / "one.png")


def test_the_line_about_a_layout_says_what_works():
    x = pixels(5, 3, 3, 3)
    assert torch.equal(as_dataset(x, [0] * 5, layout="NCHW").images, x)
    assert torch.equal(as_dataset(x.permute(0, 2, 3, 1), [0] * 5, layout="NHWC").images, x)
    assert as_dataset(pixels(2, 4), [0, 1], layout="NCHW").shape == (4, 6, 5)
    with pytest.raises(ValueError, match="layout must be NCHW or NHWC, got 'CHW'"):
        as_dataset(x, [0] * 5, layout="CHW")
    with pytest.raises(ValueError, match=r"labels must be among the classes dog, got 'cat'"):
        as_dataset(pixels(1), "cat", class_names=["dog"])
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.1, got 2 to 2"):
        as_dataset(pixels(1), 2, class_names=["dog", "cat"])
    with pytest.raises(ValueError, match="limit must be >= 1, got 0"):
        as_dataset(pixels(1), 0, limit=0)


def test_floats_between_the_grid_are_kept_for_certificates():
    x = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(as_inputs(x.permute(0, 2, 3, 1).numpy()).images, x)


@pytest.fixture(scope="module")
def network():
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 4 * 3, 3)]
    model = Normalised(torch.nn.Sequential(*layers), [0.4, 0.5, 0.6], [0.2, 0.2, 0.2]).eval()
    torch.set_rng_state(torch_state)
    return model


FORMS = {
    "array": lambda x: x.numpy(),
    "NHWC array": lambda x: x.permute(0, 2, 3, 1).numpy(),
    "NHWC tensor": lambda x: x.permute(0, 2, 3, 1),
    "floats": lambda x: x.numpy() / 255,
    "long doubles": lambda x: x.numpy().astype(np.longdouble) / 255,
    "Pillow": lambda x: [Image.fromarray(one) for one in x.permute(0, 2, 3, 1).numpy()],
    "list": list,
    "Dataset": lambda x: Dataset("x", "test", x, torch.zeros(len(x)).long(), ("0", "1")),
    "torch Dataset": Photos,
    "DataLoader": lambda x: loader_of(torch.utils.data.TensorDataset(x, torch.arange(len(x)) % 2), batch_size=3),
}


@pytest.mark.parametrize("form", FORMS)
def test_certificates_take_the_same_forms_and_give_the_same_numbers(form, network):
    x = pixels(4)
    smoothed = SmoothedClassifier(network, 0.25, 3)
    assert smoothed.certify(FORMS[form](x), n=200) == smoothed.certify(x, n=200)
    assert smoothed.predict(FORMS[form](x), n=50) == smoothed.predict(x, n=50)
    y = [0, 1, 0, 1]
    asked = {"sigma": 0.25, "eps": [0.0, 0.1], "draws": 5}
    wanted = certify_shift(network, x, torch.tensor(y), **asked)
    own = form in ("torch Dataset", "DataLoader")
    if form != "Dataset":
        assert certify_shift(network, FORMS[form](x), *([] if own else [y]), **asked) == wanted


LABELS = {
    "big-endian": lambda y: y.astype(">i8"),
    "uint16": lambda y: y.astype(np.uint16),
    "negative strides": backwards,
    "read-only": frozen_array,
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_are_taken_in_every_byte_order_and_layout(form, network):
    x, y = pixels(4), np.array([0, 1, 2, 1])
    wanted = certify_shift(network, x, torch.from_numpy(y), sigma=0.25, eps=[0.1], draws=5)
    assert certify_shift(network, x, LABELS[form](y), sigma=0.25, eps=[0.1], draws=5) == wanted
    assert as_dataset(x, LABELS[form](y)).labels.tolist() == y.tolist()


def test_a_single_image_is_certified_in_every_layout(network):
    x = pixels(1)
    smoothed = SmoothedClassifier(network, 0.25, 3)
    wanted = smoothed.certify(x, n=200)
    for one in (x[0], x[0].permute(1, 2, 0), x[0].numpy(), Image.fromarray(x[0].permute(1, 2, 0).numpy())):
        assert smoothed.certify(one, n=200) == wanted


def test_what_the_network_takes_as_a_batch_is_a_batch(half_space):
    smoothed = SmoothedClassifier(half_space, 0.25, 2)
    vectors = torch.rand(3, 16, generator=torch.Generator().manual_seed(0))
    assert len(smoothed.predict(vectors, n=20)) == 3
    assert smoothed.predict(vectors.view(3, 4, 4), n=20) == smoothed.predict(vectors.view(3, 1, 4, 4), n=20)
    grey = pixels(1, 1, 4, 4)
    assert smoothed.certify(grey[0, 0], n=100) == smoothed.certify(grey, n=100), "(h, w)"


def test_certificates_name_what_the_values_look_like(network):
    smoothed = SmoothedClassifier(network, 0.25, 3)
    for form in (FORMS["NHWC array"], lambda x: x):
        with pytest.raises(ValueError, match=r"x must be in \[0, 1\], got .*: they look normalised; pass them in"):
            smoothed.certify(form(pixels() / 127.5 - 1), n=100)
        with pytest.raises(ValueError, match=r"they look like 0\.\.255: pass them as uint8"):
            smoothed.certify(form(pixels().float()), n=100)


class Failing(torch.utils.data.Dataset):
    """A data set whose second item raises."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 1:
            raise self.error
        return torch.zeros(1, 4, 4), 0


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(0), StopIteration(), IndexError()])
def test_an_error_of_a_data_set_is_one_line_that_names_the_place(error):
    what = rf"must be readable, but the data set raised {type(error).__name__}.* in test_inputs.py:\d+ \(__getitem__\)"
    with pytest.raises(ValueError, match=what):
        as_dataset(Failing(error))
    with pytest.raises(ValueError, match="the data set raised"):
        as_dataset(torch.utils.data.DataLoader(Failing(KeyError("x")), generator=torch.Generator()))


def nested(x):
    return x.tolist()


REFUSED = {
    "0 to 255": (lambda x: x.float(), "pass them as uint8, or divided by 255"),
    "normalised": (lambda x: (x / 255 - 0.5) / 0.25, "they look normalised; pass them in"),
    "int64": (lambda x: x.long(), "pass uint8 for values 0..255"),
    "bool": (lambda x: x > 100, "pass uint8 for values 0..255"),
    "complex": (lambda x: x.to(torch.complex64), "must be uint8 or floating point, got complex64"),
    "NaN": (lambda x: x.float() * torch.nan, "must be in [0, 1], got values from nan to nan"),
    "nested lists": (nested, "got nested lists: pass np.array of them"),
    "nested lists of one channel": (lambda x: x[:, :2].tolist(), "got nested lists: pass np.array of them"),
    "three values per item": (lambda x: [(one, 0, 0) for one in x], "must come as (image, label), got 3 values"),
    "a dict": (lambda x: {"image": x}, "a folder or the name of a data set, got a dict"),
    "a number": (lambda x: 5, "a folder or the name of a data set, got a int"),
    "None": (lambda x: None, "got "),
    "a name that is none": (lambda x: "nope", "data must be one of mnist, "),
    "no images": (lambda x: x[:0], "got the shape (0, 3, 6, 5)"),
    "an empty list": (lambda x: [], "must hold at least one image, got none"),
    "a vector": (lambda x: torch.zeros(7), "got the shape (7,)"),
    "a scalar": (lambda x: torch.tensor(1.0), "got the shape ()"),
    "two types": (lambda x: [x[0], x[1] / 255], "must have one type, got torch.uint8 and torch.float32"),
    "two sizes": (lambda x: [x[0], x[1][:, :5]], "must have one shape, got 3x6x5 and 3x5x5"),
    "16 bits": (lambda x: Image.fromarray(np.zeros((6, 5), np.uint16)), "must have 8 bits per channel"),
    "sparse": (lambda x: (x / 255).to_sparse(), "must be a dense tensor"),
    "without values": (lambda x: x.to("meta"), "meta"),
    "an array of objects": (lambda x: np.array([None, 1]), "got an array of object"),
    "no such file": (lambda x: "nowhere.png", "there is no such file"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_every_entry_refuses_in_one_line_that_says_what_to_pass(form, network, tmp_path):
    make, message = REFUSED[form]
    smoothed, y = SmoothedClassifier(network, 0.25, 3), [0, 1, 2, 1]
    entries = {
        "as_dataset": lambda x: as_dataset(x, y),
        "evaluate": lambda x: rhobust.evaluate(network, x, y, out=tmp_path / "out"),
        "certify": lambda x: smoothed.certify(x, n=100),
        "predict": lambda x: smoothed.predict(x, n=20),
        "certify_shift": lambda x: certify_shift(network, x, y, sigma=0.25, eps=[0.1]),
    }
    for name, entry in entries.items():
        with pytest.raises(ValueError, match=r" must ") as error:
            entry(make(pixels(4)))
        assert message in str(error.value), name
        assert "\n" not in str(error.value), name
    assert not (tmp_path / "out").exists()


SINGLE = {
    "CHW uint8": lambda x: x,
    "HWC uint8 array": lambda x: x.permute(1, 2, 0).numpy(),
    "CHW float": lambda x: x / 255,
    "HWC float64 array": lambda x: x.permute(1, 2, 0).numpy() / 255,
    "Pillow image": lambda x: Image.fromarray(x.permute(1, 2, 0).numpy()),
    "list of one": lambda x: [x],
}


@pytest.mark.parametrize("form", [*FORMS, *SINGLE])
def test_evaluate_takes_the_same_forms(form, network, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[rhobust.evaluate.__module__], "assess", lambda target, **options: target)
    one, own = form in SINGLE, form in ("Dataset", "torch Dataset", "DataLoader")
    x, y = pixels(1 if one else 4), 1 if one else [0, 1, 2, 1]
    given = SINGLE[form](x[0]) if one else FORMS[form](x)
    named = {"class_names": ["cat", "dog", "cow"]} if form == "torch Dataset" else {}
    target = rhobust.evaluate(network, given, *([] if own else [y]), sigma=0.25, out=tmp_path / "out", **named)
    wanted = {image.numpy().tobytes() for image in x}
    assert {image.numpy().tobytes() for image in target.data.images} == wanted
    assert len(target.data) == len(x)


@pytest.mark.parametrize("form", SINGLE)
def test_one_image_goes_through_every_entry(form, network):
    x, smoothed = pixels(1), SmoothedClassifier(network, 0.25, 3)
    given = SINGLE[form](x[0])
    assert as_dataset(given, 1).fingerprint() == as_dataset(x, [1]).fingerprint()
    assert smoothed.certify(given, n=100) == smoothed.certify(x, n=100)
    asked = {"sigma": 0.25, "eps": [0.1], "draws": 5}
    assert certify_shift(network, given, 1, **asked) == certify_shift(network, x, [1], **asked)


def test_load_takes_a_name_or_a_path_and_says_where_images_go(tmp_path):
    (tmp_path / "test/cat").mkdir(parents=True)
    Image.new("L", (4, 4)).save(tmp_path / "test/cat/1.png")
    assert len(rhobust.load(tmp_path, "test")) == 1
    for other in (pixels(2), pixels(2).numpy(), [1], None):
        with pytest.raises(ValueError, match=r"data must be the name .* got a \w+: pass images to as_dataset"):
            rhobust.load(other, "test")
