"""Columns are chosen by their types; these tests need no package datasets."""

import sys
from pathlib import Path

import pytest

from rhobust.data import as_dataset, get, load
from rhobust.data.hugging_face import HuggingFace, is_live
from rhobust.data.sizing import AS_STORED
from rhobust.data.table_rows import Columns, TableRows, find_columns
from rhobust.progress import no_progress


class Image:
    decode = True


class ClassLabel:
    dtype = "int64"

    def __init__(self, *names: str) -> None:
        self.names = list(names)


class Value:
    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


PETS = ClassLabel("cat", "dog")
FILE = {"bytes": Value("binary"), "path": Value("string")}


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ({"photo": Image(), "kind": PETS, "id": Value("int64")}, Columns("photo", "kind", ("cat", "dog"))),
        ({"mask": Image(), "image": Image(), "label": PETS}, Columns("image", "label", ("cat", "dog"))),
        (
            {"img": Image(), "coarse_label": ClassLabel("pet"), "fine_label": PETS},
            Columns("img", "fine_label", ("cat", "dog")),
        ),
        ({"image": Image(), "label": Value("int32")}, Columns("image", "label", None)),
        ({"image": Image(), "label": Value("string"), "caption": Value("string")}, Columns("image", "label", None)),
        ({"image": FILE, "label": Value("int64")}, Columns("image", "label", None)),
        ({"data": Value("binary"), "y": Value("int64")}, Columns("data", "y", None)),
        ({"image": Image(), "caption": Value("string")}, Columns("image", None, None)),
        ({"text": Value("string"), "label": PETS}, None),
    ],
)
def test_columns_are_found_by_type(features, found) -> None:
    assert find_columns(features) == found


def test_two_columns_of_one_type_and_no_usual_name_are_refused() -> None:
    with pytest.raises(ValueError, match="columns of images must be one, got left, right: keep one"):
        find_columns({"left": Image(), "right": Image(), "label": PETS})
    with pytest.raises(ValueError, match="columns of labels must be one, got breed, kind"):
        find_columns({"image": Image(), "breed": PETS, "kind": PETS})


def test_a_label_that_is_no_class_number_is_refused_before_classes_are_named(tmp_path) -> None:
    class Table(dict):
        def __init__(self) -> None:
            super().__init__(image=[b"", b""], label=[0, 10**6])
            self.features = {"image": Image(), "label": Value("int64")}

    rows = TableRows(Table(), (), Path("pets"))
    with pytest.raises(ValueError, match="pets must have labels below 100,000, got 1000000"):
        rows.load("test", "test", AS_STORED, tmp_path, no_progress, name="pets")


def test_without_the_package_one_line_says_how_to_install_it(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for use in (lambda: load(f"hf-datasets:{tmp_path}", "test"), lambda: get("hf-datasets:user/pets", root=tmp_path)):
        with pytest.raises(ValueError, match=r"needs the package datasets: python -m pip install '\.\[hub\]'"):
            use()


@pytest.mark.parametrize("spec", ["", ":test", "a:b:c:d"])
def test_a_name_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"data must be hf-datasets:FOLDER-or-ID\[:split\[:config\]\], got"):
        load(f"hf-datasets:{spec}", "test")


def test_names(tmp_path) -> None:
    assert HuggingFace("user/pets:validation:small").name == "pets-validation-small"
    assert HuggingFace("user/pets::small").name == "pets-small"
    (tmp_path / "a:b:c:d").mkdir()
    assert HuggingFace(str(tmp_path / "a:b:c:d")).name == "a:b:c:d"


def test_what_is_not_live_is_not_taken_for_it() -> None:
    class Dataset:  # not of the package
        pass

    assert not is_live(Dataset())
    with pytest.raises(ValueError, match="images must be an array"):
        as_dataset(Dataset(), [1])
