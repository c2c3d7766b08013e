"""The report in headless Chromium: it opens, filters and shows a red case, at two sizes, light and dark.

Needs Selenium, and Chromium with its driver: `apt-get install chromium chromium-driver`. `tox run -e browser` has the
former; where the latter are missing, its tests fail. Without Selenium, other environments leave this file out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from parity_tests.reports.heatmap import interactive_heatmap
from parity_tests.reports.html_report import page
from parity_tests.tests.reports import runs

SIZES = {"phone": (390, 844), "desktop": (1400, 900)}
MANY = 95_000
CONTRAST = """
const channels = (colour) =>
    colour.match(/[0-9.]+/g).slice(0, 3).map((value) => (colour.startsWith("rgb") ? value / 255 : +value));
const light = (colour) => channels(colour).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
const page = getComputedStyle(document.body).backgroundColor;
const texts = "#matrix button, .legend li, header *, .status, a, #cases b, .heat td, " +
    ".ah-numbers td, .ah-map button, .ah-map th, .ah-list td, .ah-list th";
return [...document.querySelectorAll(texts)].map((one) => {
    const style = getComputedStyle(one);
    let back = one;
    while (back && /, 0\\)$|transparent/.test(getComputedStyle(back).backgroundColor)) back = back.parentElement;
    const pair = [light(style.color), light(back ? getComputedStyle(back).backgroundColor : page)];
    return [one.className, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05)];
}).filter(([, contrast]) => contrast < 4.5);
"""
"""The elements whose text has less contrast than WCAG's level AA asks for."""


WORDS = ["the", "cat", "sat", "on", "the", "mat", "and", "looked", "at", "<img src=x onerror=alert(1)>"]
WEIGHTS = np.arange(1.0, 301.0).reshape(3, 10, 10) / 300.0


def heatmaps() -> str:
    """A page with two heatmaps: of three heads, and of one whose cells have numbers."""
    first = interactive_heatmap(WEIGHTS, WORDS, WORDS, label="three heads")
    second = interactive_heatmap([[0.1, 0.6, 0.75], [0.9, np.nan, 0.0]], ["va", "!"], ["go", ".", "x"], assets=False)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
    return (
        f'<!doctype html><html lang="en">{head}<title>heatmaps</title><body style="background: Canvas">{first}{second}'
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "heatmaps.html").write_text(heatmaps(), encoding="utf-8")
    for name, run in {"green": runs.judged(), "red": runs.judged(red=True), "large": runs.large(MANY)}.items():
        (folder / f"{name}.html").write_text(page(run), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[webdriver.Chrome]:
    """A headless Chromium that logs what it requests."""
    programs = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    assert all(programs), "no Chromium with its driver. Run: apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    yield driver
    driver.quit()


@pytest.fixture
def opened(chromium: webdriver.Chrome, folder: Path) -> Iterator[Callable[..., webdriver.Chrome]]:
    """Open a page; afterwards, nothing was logged, and nothing but the page was requested."""
    asked: list[str] = []

    def open_page(name: str, size: str = "desktop", scheme: str = "light", fragment: str = "") -> webdriver.Chrome:
        emulate(chromium, size, scheme)
        chromium.get("about:blank")
        forget(chromium)
        asked.append((folder / f"{name}.html").as_uri())
        chromium.get(asked[-1] + fragment)
        return chromium

    yield open_page
    assert not chromium.get_log("browser")
    assert set(requested(chromium)) == set(asked[-1:])


def emulate(chromium: webdriver.Chrome, size: str, scheme: str) -> None:
    """Give the next page a size and a colour scheme."""
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def forget(chromium: webdriver.Chrome) -> None:
    """Empty the logs, which reading them does."""
    for log in ("browser", "performance"):
        chromium.get_log(log)


def requested(chromium: webdriver.Chrome) -> list[str]:
    """The addresses that were requested since the logs were emptied."""
    events = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def shown(driver: webdriver.Chrome, selector: str) -> list[WebElement]:
    """The visible elements, waited for until there are some."""

    def visible(driver: webdriver.Chrome) -> list[WebElement]:
        return [one for one in driver.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]

    return WebDriverWait(driver, 20, 0.02).until(visible)


def texts(elements: list[WebElement]) -> list[str]:
    return [one.text for one in elements]


def rows(driver: webdriver.Chrome) -> list[str]:
    return texts(shown(driver, "#matrix tr[data-operator] > th"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_red_case_opens_with_its_arrays(opened: Callable[..., webdriver.Chrome], size: str, scheme: str):
    driver = opened("red", size, scheme)
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert driver.title == "red: attention-parity"
    assert not driver.execute_script(CONTRAST)
    button = driver.find_element(By.CSS_SELECTOR, "#matrix button.red")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    first = shown(driver, "#cases summary")[0]
    assert "✕ fail" in first.text and shown(driver, "#place-title")[0].text == "masked_softmax · torch"
    first.click()
    figures = shown(driver, "#cases figure")
    assert [one.text.split()[0] for one in figures[:4]] == ["actual", "expected", "difference", "scores"]
    assert "nan" in figures[0].text and "nan" not in figures[1].text
    body = shown(driver, ".body")[0].text
    for words in (
        "A fully masked row is NaN.",
        "largest measured error",
        "attention-parity run --backend torch --case",
    ):
        assert words in body
    assert not driver.execute_script(CONTRAST)
    inside = "const place = document.getElementById('place'); return place.scrollWidth <= place.clientWidth"
    assert driver.execute_script(inside)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_a_green_page_filters(opened: Callable[..., webdriver.Chrome], size: str, scheme: str):
    driver = opened("green", size, scheme)
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert not driver.execute_script(CONTRAST)
    assert rows(driver) == ["causal_mask", "masked_softmax", "dot_score", "GeneralAttention"]
    driver.find_element(By.ID, "operator").send_keys("SCORE")
    assert rows(driver) == ["dot_score"] and shown(driver, "#shown")[0].text == "1 operators"
    driver.find_element(By.CSS_SELECTOR, "#filters [type=reset]").click()
    WebDriverWait(driver, 20).until(lambda driver: len(rows(driver)) == 4)
    driver.find_element(By.ID, "red").click()
    WebDriverWait(driver, 20).until(lambda driver: driver.find_element(By.ID, "shown").text == "no operator fits")
    assert not driver.find_element(By.CSS_SELECTOR, "#matrix .room").is_displayed()


def test_filters_by_dtype_and_quantity_change_the_places(opened: Callable[..., webdriver.Chrome]):
    driver = opened("red")
    before = texts(shown(driver, "#matrix td"))
    found: dict[str, list[str]] = {}
    for select, choice in (("dtype", "float32"), ("dtype", "all"), ("quantity", "all gradients")):
        Select(driver.find_element(By.ID, select)).select_by_visible_text(choice)
        driver.execute_async_script("filter().then(arguments[0])")
        found[choice] = texts(shown(driver, "#matrix td"))
    assert found["all"] == before
    red: Callable[[list[str]], int] = lambda entries: sum("✕" in text for text in entries)  # noqa: E731
    assert 0 < red(found["float32"]) < red(before)  # the crash was in float64
    assert "–" in found["all gradients"]  # of causal_mask


def test_the_script_summarises_a_place_as_the_page_does(opened: Callable[..., webdriver.Chrome]):
    driver = opened("red")
    before = texts(shown(driver, "#matrix td"))
    summarised: list[list[Any]] = driver.execute_async_script("""
        unpacked("comparisons").then((data) => {
            const lines = [...document.querySelectorAll("#matrix [data-operator]")];
            arguments[0](lines.flatMap((line) => data.columns.map((_, column) => entry(data,
                [...data.rows.operator.keys()].filter((row) =>
                    data.rows.operator[row] === +line.dataset.operator && data.rows.column[row] === column)))));
        });
    """)
    assert [text for _, text in summarised] == before
    looks = [one.get_attribute("class") for one in driver.find_elements(By.CSS_SELECTOR, "#matrix button")]
    assert [look for look, _ in summarised] == looks


def test_a_place_is_reached_by_keys_alone(opened: Callable[..., webdriver.Chrome]):
    driver = opened("green")
    focused: Callable[[], WebElement] = lambda: driver.switch_to.active_element  # noqa: E731
    for _ in range(12):
        focused().send_keys(Keys.TAB)
        if focused().get_attribute("title"):
            break
    assert focused().get_attribute("title").startswith("causal_mask, torch")
    focused().send_keys(Keys.ARROW_DOWN)
    focused().send_keys(Keys.ARROW_RIGHT)
    assert focused().get_attribute("title").startswith("masked_softmax, jax")
    focused().send_keys(Keys.ENTER)
    assert shown(driver, "#place-title")[0].text == "masked_softmax · jax"
    assert driver.current_url.endswith("#masked_softmax/jax")
    focused().send_keys(Keys.ESCAPE)
    WebDriverWait(driver, 20).until(lambda driver: not driver.find_element(By.ID, "place").is_displayed())
    assert focused().get_attribute("title").startswith("masked_softmax, jax")


def test_an_address_opens_a_place(opened: Callable[..., webdriver.Chrome]):
    driver = opened("red", fragment="#dot_score/torch")
    assert shown(driver, "#place-title")[0].text == "dot_score · torch"
    first = shown(driver, "#cases summary")[0]
    assert first.text.startswith("✕ crash")
    first.click()
    assert runs.CODE in shown(driver, ".body")[0].text and driver.title == "red: attention-parity"


def test_many_comparisons_open_in_less_than_a_second(opened: Callable[..., webdriver.Chrome], folder: Path):
    assert (folder / "large.html").stat().st_size < 4_000_000
    seconds = []
    for _ in range(3):
        driver = opened("large")
        seconds.append(driver.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3)
    assert min(seconds) < 1.0, seconds
    driver.find_element(By.CSS_SELECTOR, "#matrix button").click()
    assert len(shown(driver, "#cases summary")) == 100
    shown(driver, ".more")[0].click()
    WebDriverWait(driver, 20).until(lambda driver: len(driver.find_elements(By.CSS_SELECTOR, "#cases summary")) > 100)


def listed(driver: webdriver.Chrome, number: int = 0) -> list[str]:
    """The weights of the chosen query, below each other."""
    heatmap = driver.find_elements(By.CSS_SELECTOR, "attention-heatmap")[number]
    return texts(heatmap.find_elements(By.CSS_SELECTOR, ".ah-list td"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pointing_at_a_query_shows_its_weights_by_number(
    opened: Callable[..., webdriver.Chrome], size: str, scheme: str
):
    driver = opened("heatmaps", size, scheme)
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert not driver.execute_script(CONTRAST) and driver.title == "heatmaps"
    assert listed(driver)[:3] == ["0.003", "0.337", "0.670"]  # of the first query for the first input, in each head
    cell = driver.find_element(By.CSS_SELECTOR, '[data-head="0"][data-query="4"] td')
    ActionChains(driver).move_to_element(cell).perform()
    assert listed(driver)[:3] == [f"{weight:.3f}" for weight in WEIGHTS[:, 4, 0]]
    assert shown(driver, ".ah-line")[0].text == "query the, 5 of 10"
    chosen = driver.find_elements(By.CSS_SELECTOR, ".ah-chosen")
    assert [(one.get_attribute("data-head"), one.get_attribute("data-query")) for one in chosen[:3]] == [
        (str(head), "4") for head in range(3)
    ]
    assert listed(driver, 1) == ["0.100", "0.600", "0.750"]  # the other heatmap is as it was
    first, second = (one.rect for one in driver.find_elements(By.CSS_SELECTOR, ".ah-heads > *")[:2])
    assert first["y"] == second["y"] and second["x"] >= first["x"] + first["width"]  # side by side, on a phone too
    assert not driver.execute_script(CONTRAST)


def test_queries_are_reached_by_keys_and_have_names(opened: Callable[..., webdriver.Chrome]):
    driver = opened("heatmaps")
    focused: Callable[[], WebElement] = lambda: driver.switch_to.active_element  # noqa: E731
    focused().send_keys(Keys.TAB)
    assert focused().tag_name == "button" and focused().accessible_name == "the"
    for keys, query, head in (
        ([Keys.ARROW_DOWN], 1, 0),
        ([Keys.ARROW_RIGHT], 1, 1),
        ([Keys.END], 9, 1),
        ([Keys.ARROW_DOWN], 9, 1),
        ([Keys.HOME, Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ARROW_DOWN], 2, 0),
    ):
        for key in keys:
            focused().send_keys(key)
        assert listed(driver)[:3] == [f"{weight:.3f}" for weight in WEIGHTS[:, query, 0]]
        row = focused().find_element(By.XPATH, "./ancestor::tr")
        assert [row.get_attribute(f"data-{name}") for name in ("head", "query")] == [str(head), str(query)]
    first, second = driver.find_elements(By.CSS_SELECTOR, "attention-heatmap")
    assert (first.aria_role, first.accessible_name) == ("group", "three heads")
    assert second.accessible_name == "Attention weights"
    line = first.find_element(By.CSS_SELECTOR, ".ah-line")
    assert line.get_attribute("aria-live") == "polite" and line.text == "query sat, 3 of 10"
    assert len(first.find_elements(By.CSS_SELECTOR, 'button[tabindex="0"]')) == 1
    focused().send_keys(Keys.TAB)  # past the other queries, to the list
    focused().send_keys(Keys.TAB)
    assert focused().text == "va"


@pytest.mark.parametrize("size", SIZES)
def test_the_report_lists_wrong_weights_beside_the_expected_ones(opened: Callable[..., webdriver.Chrome], size: str):
    driver = opened("red", size, fragment="#masked_softmax/torch")
    shown(driver, "#cases summary")[0].click()
    heatmap = shown(driver, "#cases attention-heatmap")[0]
    titles = [one.get_attribute("textContent") for one in heatmap.find_elements(By.CSS_SELECTOR, "caption")]
    assert titles[0].startswith("actual[0") and titles[1] == titles[0].replace("actual", "expected")
    found = texts(heatmap.find_elements(By.CSS_SELECTOR, ".ah-list td"))
    assert "nan" in found and "0.000" in found  # the query of the largest error is chosen
    row = next(one for one in heatmap.find_elements(By.CSS_SELECTOR, ".ah-row") if "nan" not in one.text)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", row)
    ActionChains(driver).move_to_element(row.find_element(By.CSS_SELECTOR, "td")).perform()
    found = texts(heatmap.find_elements(By.CSS_SELECTOR, ".ah-list td"))
    assert found and "nan" not in found
    assert not driver.execute_script(CONTRAST)
