"""The demo in a real browser: an image is dropped, a radius is read, and nothing is asked of other places."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By

from rhobust.cli import run
from rhobust.data import load
from tests.browser import chromium, needs_browser
from tests.commands.conftest import trained

ROOT = Path(__file__).parent.parent.parent
PORT = 17860

pytest.importorskip("gradio")
pytestmark = [pytest.mark.slow, needs_browser]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory, "method:gaussian --method.sigma 0.25")


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory) -> Iterator[subprocess.Popen]:
    """The command, which serves until Ctrl-C."""
    log = (tmp_path_factory.mktemp("demo") / "log").open("w+")
    words = [
        sys.executable,
        "-m",
        "rhobust",
        "demo",
        str(folder),
        "--port",
        str(PORT),
        "--n",
        "2000",
        "--device",
        "cpu",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    try:
        wait(lambda: f"127.0.0.1:{PORT}" in (ROOT / log.name).read_text(), 120)
        yield process
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    with chromium() as driver:
        yield driver


def wait(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What a condition gives as soon as it gives something; a part of the page may be replaced meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except WebDriverException:
            pass
        time.sleep(0.1)
    raise AssertionError("waited in vain")


def resize(browser: WebDriver, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def opened(browser: WebDriver) -> None:
    browser.get(f"http://127.0.0.1:{PORT}/")
    wait(lambda: browser.find_elements(By.CSS_SELECTOR, ".rb-answer"))


def drop(browser: WebDriver, path: Path) -> None:
    wait(lambda: browser.find_element(By.CSS_SELECTOR, "#rb-photo input[type=file]")).send_keys(str(path))


def final(browser: WebDriver) -> Any:
    """The answer after the last noise sample."""
    return wait(lambda: browser.find_element(By.CSS_SELECTOR, ".rb-answer[data-done=true]"))


def saved(path: Path, number: int) -> Path:
    Image.fromarray(load("digits", "test").images[number, 0].numpy()).save(path)
    return path


@pytest.mark.parametrize("width", [1280, 390])
def test_an_image_is_dropped_and_a_radius_is_read(server, browser, folder, tmp_path, width, capsys):
    resize(browser, width, 900)
    opened(browser)
    browser.get_log("performance")
    drop(browser, saved(tmp_path / "digit.png", 3))
    radius = float(final(browser).get_attribute("data-radius"))
    shown = final(browser).text
    assert run(["certify", str(folder), str(tmp_path / "digit.png"), "--n", "2000", "--quiet", "--json"]) == 0
    [expected] = json.loads(capsys.readouterr().out)["certificates"]
    # Other noise, a sequential test and steps of sigma / 50: the same class, and nearly the same radius.
    assert radius == pytest.approx(expected["radius"], abs=0.1)
    assert expected["class"] in shown
    assert f"{radius:.6f}"[:5] in shown or radius == 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"}
    assert asked
    assert [url for url in asked if not url.startswith((f"http://127.0.0.1:{PORT}/", "data:", "blob:"))] == []


def test_attack_corruptions_examples_and_drawing(server, browser, tmp_path):
    resize(browser, 1280, 1600)
    opened(browser)
    browser.find_element(By.ID, "rb-attack").click()
    assert "First give the network an image." in wait(lambda: browser.find_element(By.ID, "rb-attack-result").text)
    wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#rb-examples button"))[0].click()
    final(browser)
    browser.find_element(By.ID, "rb-attack").click()
    result = wait(lambda: browser.find_element(By.CSS_SELECTOR, "#rb-attack-result [data-distance]"))
    assert 0 < float(result.get_attribute("data-distance")) <= 0.25
    browser.find_element(By.ID, "rb-corrupt").click()
    gallery = wait(lambda: browser.find_element(By.CSS_SELECTOR, "#rb-corruption-result .rb-gallery"))
    assert len(gallery.find_elements(By.TAG_NAME, "figure")) == 9
    tab = next(one for one in browser.find_elements(By.CSS_SELECTOR, "button[role=tab]") if one.text == "Draw")
    tab.click()
    canvas = wait(lambda: browser.find_element(By.CSS_SELECTOR, "#rb-drawing canvas"))
    before = browser.find_element(By.CSS_SELECTOR, ".rb-answer img").get_attribute("src")
    ActionChains(browser).move_to_element_with_offset(canvas, 0, -90).click_and_hold().move_by_offset(
        0, 180
    ).release().perform()
    wait(lambda: browser.find_element(By.CSS_SELECTOR, ".rb-answer img").get_attribute("src") != before)
    final(browser)
    # Nothing of the earlier image is left.
    assert browser.find_element(By.ID, "rb-attack-result").text == ""
    browser.find_element(By.CSS_SELECTOR, "#rb-drawing button").click()
    wait(lambda: "Drop an image" in browser.find_element(By.CSS_SELECTOR, ".rb-answer").text)


def test_a_file_that_is_no_image_does_not_end_the_demo(server, browser, tmp_path):
    opened(browser)
    (tmp_path / "odd.png").write_bytes(b"no picture")
    drop(browser, tmp_path / "odd.png")
    time.sleep(2)
    drop_again = saved(tmp_path / "digit.png", 5)
    opened(browser)
    drop(browser, drop_again)
    assert float(final(browser).get_attribute("data-radius")) >= 0


def test_ctrl_c_ends_it_in_order(server):
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0
