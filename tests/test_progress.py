import pytest

from rhobust.progress import ProgressEvent, show_progress


def test_elsewhere_than_on_a_terminal_it_is_a_few_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with show_progress() as progress:
        progress("[a line] that is no markup")
        for done in range(1, 1001):
            progress(ProgressEvent("work", done, 1000, "images"))
        progress(ProgressEvent("loading", 1_500_000, None, "bytes"))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[a line] that is no markup",
        "work: 1 of 1,000 images",
        "work: 250 of 1,000 images",
        "work: 500 of 1,000 images",
        "work: 750 of 1,000 images",
        "work: 1,000 of 1,000 images",
        "loading: 1.5 MB",
    ]


def test_on_a_terminal_it_is_a_bar(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with show_progress() as progress:
        progress(ProgressEvent("work [1]", 1, 2, "bytes"))
        progress("a line between")
        progress(ProgressEvent("work [1]", 2, 2, "bytes"))
    out, err = capfd.readouterr()
    assert out == ""
    assert "work [1]" in err
    assert "━" in err
    assert "a line between" in err


def test_no_report_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with show_progress():
        pass
    assert capfd.readouterr() == ("", "")


def test_a_narrow_terminal_cuts_the_name_and_not_the_note(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    note = "512 workers, 123,456 samples/s, 12 min left"
    with show_progress() as progress:
        progress(ProgressEvent("certify a-network-with-a-long-name-and-its-hash", 12, 500, "examples", note))
    err = capfd.readouterr().err
    assert f"12 of 500 examples  {note}" in err
    assert "certify a-n…" in err
