"""The site in headless Chromium: search, tabs, formulas, two widths, light and dark; `tox run -e docs` builds it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from parity_tests.tests.places import ROOT
from parity_tests.tests.reports.test_browser import SIZES, chromium, emulate, forget, requested, shown

__all__ = ["chromium"]

SITE = ROOT / "build" / "site"
PAGES = (
    "index",
    "installation",
    "tutorials/use",
    "operators/index",
    "operators/masked_softmax",
    "commands",
    "glossary",
)
UNRENDERED = """
return [...document.querySelectorAll("math")].map((one) => one.getBoundingClientRect())
    .filter((box) => box.width < 20 || box.height < 10).length;
"""
"""How many formulas take no room, which is how they look where MathML is not rendered."""


class Silent(SimpleHTTPRequestHandler):
    """A server of files that prints no line for each."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the site is served: from a file, a browser fetches no excerpts of what a search finds."""
    assert (SITE / "index.html").is_file(), "the site is not built. Run: tox run -e docs"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def visited(chromium: webdriver.Chrome, address: str) -> Iterator[Callable[..., webdriver.Chrome]]:
    """Open a page of the site; afterwards, no error was logged, and nothing was requested from elsewhere."""
    chromium.get("about:blank")
    forget(chromium)

    def visit(page: str, size: str = "desktop", scheme: str = "light") -> webdriver.Chrome:
        emulate(chromium, size, scheme)
        name, mark, query = page.partition("?")
        chromium.get(f"{address}/{name}.html{mark}{query}")
        return chromium

    yield visit
    assert not [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    requests = requested(chromium)
    assert requests and all(url.startswith((address, "data:")) for url in requests)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_each_page_fits_its_width(visited: Callable[..., webdriver.Chrome], page: str, size: str, scheme: str):
    driver = visited(page, size, scheme)
    shown(driver, "h1")
    assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(", ")[:3])) < 3 * 128) == (scheme == "dark")


@pytest.mark.parametrize(
    ("words", "expected"),
    [("Bahdanau", "BahdanauDecoder"), ("closed", "Glossary"), ("multiplicative", "GeneralAttention")],
)
def test_the_search_finds(visited: Callable[..., webdriver.Chrome], words: str, expected: str):
    driver = visited(f"search?q={words}")

    def found(driver: webdriver.Chrome) -> bool:
        links = driver.find_elements(By.CSS_SELECTOR, "#search-results li > a")  # which come one by one
        return expected in [one.text for one in links[:5]]

    WebDriverWait(driver, 20).until(found)


def test_closed_leads_to_fully_masked(visited: Callable[..., webdriver.Chrome]):
    driver = visited("glossary")
    rows = [row.text for row in shown(driver, "tr") if "closed" in row.text]
    assert len(rows) == 1 and rows[0].startswith("fully masked row")


def test_a_tab_switches_on_every_page(visited: Callable[..., webdriver.Chrome]):
    """A framework that is chosen on one page is chosen on the next."""
    driver = visited("operators/dot_score")
    assert "torch" in shown(driver, ".sd-tab-content pre")[0].text
    next(tab for tab in shown(driver, ".sd-tab-set > label") if tab.text == "JAX").click()
    assert "jax" in shown(driver, ".sd-tab-content pre")[0].text
    assert "jax" in shown(visited("operators/cosine_score"), ".sd-tab-content pre")[0].text


@pytest.mark.parametrize("page", sorted(path.stem for path in (ROOT / "docs" / "operators").glob("[!i]*.md")))
def test_formulas_render(visited: Callable[..., webdriver.Chrome], page: str):
    driver = visited(f"operators/{page}")
    assert len(shown(driver, ".formula math")) > 0 and driver.execute_script(UNRENDERED) == 0


def test_the_weights_of_a_query_are_listed(visited: Callable[..., webdriver.Chrome]):
    driver = visited("operators/DotProductAttention")
    driver.execute_script("arguments[0].focus()", shown(driver, "attention-heatmap .ah-map button")[1])
    rows = [row.text for row in shown(driver, "attention-heatmap .ah-list tr")]
    assert rows[1].startswith("k1 ") and len(rows) == 8
    assert "q2, 2 of 5" in driver.find_element(By.CSS_SELECTOR, ".ah-query").text


def test_links_to_elsewhere_are_of_the_web(address: str):
    """An address of a scheduler in a help text is not one."""
    pages = [page.read_text(encoding="utf-8") for page in SITE.rglob("*.html")]
    schemes = {scheme for page in pages for scheme in re.findall(r'href="([a-z]+):', page)}
    assert schemes == {"https"}
