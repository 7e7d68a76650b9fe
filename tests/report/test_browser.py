"""The page in a real browser: it sorts, filters, reads off, follows the theme, and asks nothing of the network."""

import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from report.folders import (
    write_certificate,
    write_certified_images,
    write_corruptions,
    write_losses,
    write_run,
    write_shift,
    write_transfer,
)
from rhobust.formatting import format_percent
from rhobust.records import read_record
from rhobust.report import write_report
from tests.browser import chromium, needs_browser

pytestmark = needs_browser

DESKTOP, PHONE = (1280, 900), (390, 844)
AXE = Path(__file__).parents[2] / "build/axe/node_modules/axe-core/axe.min.js"
"""The accessibility checker; CONTRIBUTING.md says how to fetch it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three runs with everything that a page may show, one of them with a warning and a record cut off."""
    folder = tmp_path_factory.mktemp("page")
    names = {"nal": 0.7, "gaussian": 0.5, "erm": 0.3}
    for name, strength in names.items():
        sigma = None if name == "erm" else 0.25
        warnings = ("zero gradients on 3 examples",) if name == "gaussian" else ()
        run = write_run(folder / name, name=name, kind=name, sigma=sigma, strength=strength, warnings=warnings)
        for certificate in run.glob("certify-cohen-*.jsonl"):
            write_certified_images(certificate)
        write_transfer(run, name, {other: np.linspace(0, 1, 20) for other in names})
    write_losses(folder / "nal")
    write_corruptions(folder / "nal")
    (folder / "erm" / "diagnosis.json").write_text('{"findings": [{"text": "Not trained for noise.", "remedy": ""}]}')
    (cut,) = (folder / "gaussian").glob("certify-cohen-*.jsonl")
    cut.write_bytes(cut.read_bytes()[:-9])
    write_report([*(folder / name for name in names), folder / "gone"], folder / "report.html", title="A page")
    return folder


@pytest.fixture(scope="module")
def browser(folder) -> Iterator[WebDriver]:
    with chromium(**{"download.default_directory": str(folder / "saved")}) as driver:
        yield driver


@pytest.fixture
def page(browser, folder) -> Iterator[WebDriver]:
    """The page, newly opened at a desktop's size; a word on the console fails the test."""
    resize(browser, DESKTOP)
    prefer(browser, "light")
    browser.get((folder / "report.html").as_uri())
    browser.execute_script("localStorage.clear()")
    yield browser
    assert browser.get_log("browser") == []


def resize(browser: WebDriver, size: tuple[int, int]) -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer(browser: WebDriver, scheme: str) -> None:
    """Choose the system's colours; motion is off, or a click would race with a page that still scrolls."""
    wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wishes.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


VISIBLE = "[...document.querySelectorAll(arguments[0])].filter((element) => element.getClientRects().length > 0)"


def shown(browser: WebDriver, selector: str) -> list[WebElement]:
    return browser.execute_script(f"return {VISIBLE}", selector)


def only(browser: WebDriver, selector: str) -> WebElement:
    (element,) = shown(browser, selector)
    return element


def into_view(browser: WebDriver, element: WebElement) -> WebElement:
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def texts(browser: WebDriver, selector: str) -> list[str]:
    return browser.execute_script(f"return {VISIBLE}.map((e) => e.innerText)", selector)


def press(browser: WebDriver, selector: str) -> None:
    into_view(browser, only(browser, selector)).click()


def brightness(browser: WebDriver, selector: str = "body") -> float:
    script = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
    colour = browser.execute_script(script, selector)
    return float(np.mean([float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in 20 s"
        time.sleep(0.05)


def test_nothing_leaves_the_page(page, folder):
    for button in (".chip", "#theme", "[data-save=shift]"):
        into_view(page, shown(page, button)[0]).click()
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert (folder / "report.html").as_uri() in asked
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}


def test_headings_sort_by_value_and_back(page):
    values = "#numbers tbody tr td:nth-child(5)"
    head = "#numbers th:nth-child(5) button"
    for expected in (1, -1):
        press(page, head)
        script = "return [...document.querySelectorAll(arguments[0])].map((cell) => Number(cell.dataset.v))"
        order = page.execute_script(script, values)
        assert order == sorted(order)[::expected]
        assert len(set(order)) > 10
    assert only(page, "#numbers th:nth-child(5)").get_attribute("aria-sort") == "descending"
    press(page, ".models th:nth-child(2) button")
    clean = [float(text.rstrip("%")) for text in texts(page, ".models tbody tr:first-child td:nth-child(2) .big")]
    assert clean == sorted(clean)
    # The rows of a model stay together.
    assert texts(page, ".models tbody tr:first-child .name") != []
    assert len(shown(page, ".models tbody")) == 3


def test_the_filter_keeps_rows_with_every_word(page):
    total = len(shown(page, "#numbers tbody tr"))
    only(page, "#filter").send_keys("EOT nal")
    rows = texts(page, "#numbers tbody tr")
    assert 0 < len(rows) < total
    assert all("eot" in row.lower() and "nal" in row.lower() for row in rows)
    assert only(page, "#count").text == f"{len(rows)} of {total} numbers"
    only(page, "#filter").clear()
    only(page, "#filter").send_keys(" ")
    only(page, "#filter-model").send_keys("gaussian")
    only(page, "#filter-status").send_keys("proved")
    rows = texts(page, "#numbers tbody tr")
    assert rows
    assert all(row.startswith("gaussian") and "proved" in row for row in rows)


def test_the_pointer_reads_the_figure_off(page, folder):
    chart = into_view(page, only(page, "#figure-radius .chart"))
    (record,) = (folder / "nal").glob("attack-eot-*.jsonl")
    broken = [row["broken"] for row in read_record(record).rows if row["radius"] == 0.5]
    place = page.execute_script(
        "const d = arguments[0].dataset, n = Number; const x = n(d.left) + (0.5 - n(d.low)) / (n(d.high) - n(d.low))"
        " * (n(d.right) - n(d.left)); return x / arguments[0].viewBox.baseVal.width",
        chart,
    )
    assert not shown(page, "#figure-radius .readout")
    ActionChains(page).move_to_element_with_offset(chart, round((place - 0.5) * chart.rect["width"]), 0).perform()
    readout = only(page, "#figure-radius .readout")
    lines = readout.text.splitlines()
    assert lines[0].startswith("radius 0.5")
    assert f"≤ {100 - 100 * np.mean(broken):.1f}%" in next(line for line in lines if line.startswith("nal"))
    # The cut certificate and the warned attack say so where they are read.
    assert next(line for line in lines if line.startswith("gaussian")).count("⚠") >= 2
    assert page.find_element(By.CSS_SELECTOR, "#figure-radius .wide .guide").get_attribute("visibility") == "visible"
    ActionChains(page).move_to_element(only(page, "h1")).perform()
    assert not shown(page, "#figure-radius .readout")


def test_keys_read_the_figure_off(page):
    chart = into_view(page, only(page, "#figure-shift .chart"))
    page.execute_script("arguments[0].focus()", chart)
    heads = []
    for key in (Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.END):
        chart.send_keys(key)
        heads.append(only(page, "#figure-shift .readout thead th:first-child").text)
    assert heads == ["eps 0", "eps 0.05", "eps 0.1", "eps 0.5"]
    chart.send_keys(Keys.ESCAPE)
    assert not shown(page, "#figure-shift .readout")


def test_chips_switch_lines(page):
    lines = "#figure-radius .wide .series"
    everything = len(shown(page, lines))
    press(page, "#figure-radius .chip[data-kind=eot]")
    assert len(shown(page, lines)) == everything - 2
    press(page, "#figure-radius .chip[data-run='0']")
    assert all(line.get_attribute("data-run") != "0" for line in shown(page, lines))
    press(page, "#figure-radius .chip[data-kind=eot]")
    assert {line.get_attribute("data-kind") for line in shown(page, lines)} == {"certified", "eot", "base", "plain"}
    assert shown(page, "#figure-radius .wide .band")
    press(page, "#figure-radius .chip[data-bands]")
    assert not shown(page, "#figure-radius .wide .band")


def test_a_line_has_the_colour_of_its_model(page):
    script = """
    const line = document.querySelector("#figure-radius .wide .series:not(.off) .line");
    const [series, stroke] = [line.closest(".series"), getComputedStyle(line).stroke];
    return [stroke, getComputedStyle(series).color];"""
    stroke, colour = page.execute_script(script)
    assert stroke == colour
    assert len(set(colour.partition("(")[2].rstrip(")").split(","))) > 1, "it is not grey"


def test_the_slider_never_reads_more_than_is_certified(page, folder):
    (record,) = (folder / "nal").glob("certify-shift-*")
    summary = read_record(record).summary
    assert summary is not None
    curve = {point["eps"]: point["certified_accuracy"] for point in summary["curve"]}
    slider = into_view(page, only(page, "#slider-shift"))
    assert only(page, "#figure-shift .slider output").text == "0.100"
    for value in (0.0, 0.05, 0.051, 0.1, 0.2, 0.249, 0.25, 0.251, 0.4999, 0.5):
        page.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", slider, value
        )
        eps = float(only(page, "#figure-shift .slider output").text)
        assert eps == pytest.approx(value, abs=5.1e-4)
        read = {line.split("\n")[0]: line.split("\n")[-1] for line in texts(page, "#figure-shift .values li")}
        certified = next(curve[at] for at in sorted(curve) if at >= eps - 1e-9)
        assert read["nal"] == f"≥\u00a0{format_percent(certified, 'down')}%"
    slider.send_keys(Keys.HOME)
    assert only(page, "#figure-shift .slider output").text == "0.000"
    slider.send_keys(Keys.ARROW_RIGHT)
    assert only(page, "#figure-shift .slider output").text == "0.001"


def test_the_slider_of_a_network_of_which_nothing_is_proved_reads_zero(browser, tmp_path):
    run = write_run(tmp_path / "run", examples=40)
    for path in [*run.glob("certify-*")]:
        path.unlink()
    write_certificate(run, np.full(40, -1.0), sigma=0.25)
    write_shift(run, np.full(40, 20), sigma=0.25)
    write_report([run], tmp_path / "report.html")
    resize(browser, DESKTOP)
    browser.get((tmp_path / "report.html").as_uri())
    for name, end in (("radius", 1.0), ("shift", 0.5)):
        assert 0 < float(only(browser, f"#figure-{name} .slider output").text) <= end
        assert texts(browser, f"#figure-{name} .values li b") == ["≥\u00a00.0%"]


def test_dark_follows_the_system_and_the_button(page):
    prefer(page, "light")
    assert brightness(page) > 200
    prefer(page, "dark")
    assert brightness(page) < 60
    assert brightness(page, "#models") < 70
    press(page, "#theme")
    assert brightness(page) > 200
    page.refresh()
    assert brightness(page) > 200
    press(page, "#theme")
    assert brightness(page) < 60


@pytest.mark.parametrize("size", [DESKTOP, (700, 900), PHONE, (320, 640)])
def test_nothing_sticks_out_at_any_width(page, folder, size):
    resize(page, size)
    page.get((folder / "report.html").as_uri())
    page.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.execute_script("return document.documentElement.scrollWidth") <= size[0]
    script = """
    const out = [];
    for (const element of document.querySelectorAll("main *")) {
      const box = element.getBoundingClientRect();
      const out_of_sight = box.width && box.right > innerWidth + 1 && !element.closest(".scroll");
      if (out_of_sight) out.push(element.outerHTML.slice(0, 90));
    }
    return out;"""
    assert page.execute_script(script) == []
    narrow = len(shown(page, "#figure-radius .narrow .chart"))
    assert narrow == (size[0] <= 640)


def test_a_tap_on_a_phone_reads_off_below_the_figure(page):
    resize(page, PHONE)
    chart = into_view(page, only(page, "#figure-radius .chart"))
    ActionChains(page).move_to_element(chart).click().perform()
    readout = only(page, "#figure-radius .readout")
    assert readout.rect["y"] >= chart.rect["y"] + chart.rect["height"]


def test_pictures_are_there_and_load(page):
    pictures = page.find_elements(By.CSS_SELECTOR, "#examples img")
    assert len(pictures) == 2 * 6 * 3
    assert page.execute_script("return arguments[0].every((img) => img.complete && img.naturalWidth === 8)", pictures)
    assert all(picture.get_attribute("alt") for picture in pictures)


def test_figures_and_numbers_are_saved(page, folder):
    page.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder / "saved")})
    prefer(page, "dark")
    press(page, "#figure-shift .chip[data-run='1']")
    for button in ("[data-save=shift]", "[data-csv=shift]", "#save-csv"):
        press(page, button)
    wanted = [folder / "saved" / name for name in ("shift.svg", "shift.csv", "numbers.csv")]
    wait_for(lambda: all(path.exists() and path.stat().st_size for path in wanted))
    drawing = ElementTree.parse(wanted[0]).getroot()
    text = wanted[0].read_text()
    assert "var(" not in text
    assert "#ffffff" in text or "#fff" in text
    labels = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert any(label and label.startswith("nal, W2") for label in labels)
    assert not any(label and label.startswith("gaussian") for label in labels)
    with wanted[2].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(shown(page, "#numbers tbody tr"))
    proved = [row for row in rows if row["quantity"] == "Certified accuracy" and row["model"] == "nal"]
    assert [row["at"] for row in proved] == ["radius"] * len(proved)
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in proved)
    assert any("zero gradients" in row["warnings"] for row in rows)
    with wanted[1].open(newline="") as file:
        assert {"line", "eps", "value"} <= set(next(csv.DictReader(file)))


def test_print_shows_everything_on_white(page):
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not shown(page, "nav")
    assert not shown(page, ".slider")
    assert shown(page, "#figure-radius .chart")
    assert shown(page, "#numbers tbody tr")
    script = "return document.querySelector(arguments[0]).getBoundingClientRect()[arguments[1]]"
    end, start = (page.execute_script(script, *of) for of in (("#numbers table", "bottom"), ("#words", "top")))
    assert end <= start, "what follows the table is not printed over it"
    assert len(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]) > 10_000


def test_what_is_missing_is_said_at_the_top(page, folder):
    assert f"{folder / 'gone'} is left out" in only(page, ".missing-runs").text
    assert "unfinished: 200 examples so far" in only(page, "#table .footnotes").text


def test_without_a_script_the_numbers_are_there(browser, folder):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((folder / "report.html").as_uri())
        assert shown(browser, "#figure-radius .chart")
        assert len(shown(browser, "#numbers tbody tr")) > 50
        assert not shown(browser, ".needs-script")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_gallery_is_sorted_and_folds(page):
    first = page.find_element(By.CSS_SELECTOR, "#images details.certified")
    assert first.get_attribute("open") is None
    into_view(page, first.find_element(By.TAG_NAME, "summary")).click()
    radii = "return [...arguments[0].querySelectorAll('li')].map((item) => Number(item.dataset.radius))"
    assert page.execute_script(radii, first) == sorted(page.execute_script(radii, first))
    choice = first.find_element(By.CSS_SELECTOR, "select")
    choice.send_keys("radius, largest")
    found = page.execute_script(radii, first)
    assert found == sorted(found, reverse=True)
    assert len(set(found)) > 3


def test_the_menu_stays_in_sight_and_marks_the_section(page):
    for size in (DESKTOP, PHONE):
        resize(page, size)
        into_view(page, page.find_element(By.CSS_SELECTOR, "#figure-shift h2"))
        page.execute_script("document.querySelector('#figure-shift').scrollIntoView()")
        top = page.execute_script("return document.querySelector('nav').getBoundingClientRect().top")
        assert top == 0
        wait_for(lambda: texts(page, "nav a[aria-current]") == ["Shift"])
        heading = page.execute_script("return document.querySelector('#figure-shift h2').getBoundingClientRect().top")
        assert heading >= page.execute_script("return document.querySelector('nav').getBoundingClientRect().bottom")


def test_a_wide_table_shows_that_it_scrolls_and_galleries_are_folded_on_a_phone(page, folder):
    assert all("more-right" not in box.get_attribute("class") for box in shown(page, "#versus .scroll"))
    assert len(shown(page, "#examples details[open]")) == 2
    resize(page, PHONE)
    page.get((folder / "report.html").as_uri())
    assert not shown(page, "#examples details[open]")
    box = into_view(page, shown(page, "#versus .scroll")[0])
    wait_for(lambda: "more-right" in box.get_attribute("class"))
    assert "scrolls sideways" in texts(page, "#versus .sideways")[0]
    page.execute_script("arguments[0].scrollLeft = 10000", box)
    wait_for(lambda: "more-left" in box.get_attribute("class") and "more-right" not in box.get_attribute("class"))


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core, see CONTRIBUTING.md")
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, folder, size, scheme):
    resize(page, size)
    prefer(page, scheme)
    page.get((folder / "report.html").as_uri())
    page.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    # The page's own policy lets no other script in: the driver brings it.
    page.execute_script(AXE.read_text(encoding="utf-8"))
    page.set_script_timeout(60)
    found = page.execute_async_script("axe.run({resultTypes: ['violations']}).then(arguments[0])")
    assert found["testEngine"]["version"] == "4.14.0"
    serious = [
        (one["id"], one["help"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
