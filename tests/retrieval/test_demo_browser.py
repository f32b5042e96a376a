"""The demo page as a person uses it: a real browser, headless, on a page that a process of its own serves."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image

pytest.importorskip("gradio", reason="the demo page needs gradio")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def server(folder):
    """The address of the page. Afterwards: Ctrl-C ends it, one line was printed, nobody outside was asked."""
    script = Path(__file__).with_name("demo_server.py")
    environment = os.environ | {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": str(folder / "uploads")}
    with open(folder / "log.txt", "w") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder), "0"], stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores Ctrl-C
        )
    line = process.stdout.readline()
    found = re.fullmatch(r"demo ready at (http://127\.0\.0\.1:\d+) \(Ctrl-C stops\)\n", line)
    if not found:
        process.kill()
        process.communicate()
    assert found, f"{line!r}\n{(folder / 'log.txt').read_text()}"
    yield found[1]
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=20)
    assert rest == "" and process.returncode in (-signal.SIGINT, 130)
    assert not (folder / "outside.txt").exists(), (folder / "outside.txt").read_text()


class Page:
    """A browser on the page, with waiting."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def open(self, width=1280, height=900, dark=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(self.url)
        self.until(lambda: len(self.all(".zoo-card")) == 6)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector):
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
        return self.driver.execute_script(script, selector)

    def until(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            body = self.driver.find_element("tag name", "body").text if time.monotonic() > end else ""
            assert time.monotonic() < end, f"waited {seconds} s; the page: {body}"
            time.sleep(0.05)

    def ask(self, text):
        field = self.all("#zoo-query input, #zoo-query textarea")[0]
        field.clear()
        field.send_keys(text + "\n")
        self.until(lambda: f"“{text}”" in self.status())

    def drop(self, file):
        self.all("#zoo-picture input[type=file]")[0].send_keys(str(file))

    def status(self):
        return " ".join(self.texts("#zoo-status .zoo-status"))

    def names(self):
        return self.texts("#zoo-results .zoo-name")


@pytest.fixture(scope="module")
def browser(server, folder):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromium-driver are not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield Page(driver, server)
    driver.quit()


@pytest.fixture
def page(browser):
    browser.open()
    return browser


def test_starts_with_the_first_pictures_and_example_queries(page):
    assert page.status() == "The first 6 pictures"
    assert page.names()[:3] == ["red", "dark red", "green"]
    assert page.texts(".zoo-chip") == ["green", "blue"]
    sizes = "return [...document.querySelectorAll('.zoo-card img[loading=lazy]')].map(e => e.naturalWidth)"
    page.until(lambda: page.driver.execute_script(sizes) == [24] * 6)  # each asked for when it comes into sight


def test_enter_searches_and_results_come_ranked_with_scores(page):
    page.ask("red")
    assert page.names()[:2] == ["red", "dark red"]
    numbers = page.texts("#zoo-results .zoo-numbers")
    assert [n.split()[0] for n in numbers] == ["1", "2", "3", "4", "5", "6"]
    scores = [float(n.split()[-1]) for n in numbers]
    assert scores[0] == 1 and scores == sorted(scores, reverse=True) and scores[1] == pytest.approx(0.984, abs=2e-3)
    assert page.status().startswith("The best 6 of 6 pictures for “red” in ")
    field = page.all("#zoo-query input, #zoo-query textarea")[0]
    field.send_keys("\ue003" * 3 + "\n")  # Backspace; an empty query
    page.until(lambda: page.status() == "The first 6 pictures")


def test_an_example_query_is_one_click(page):
    page.all(".zoo-chip")[1].click()
    page.until(lambda: "“blue”" in page.status())
    assert page.names()[0] == "blue"
    assert page.all("#zoo-query input, #zoo-query textarea")[0].get_attribute("value") == "blue"


def test_reranking_shows_match_and_ranks_before_and_after(page):
    page.ask("red")
    page.all("#zoo-rerank input")[0].click()
    page.until(lambda: "re-ranked" in page.status())
    assert page.names()[:2] == ["dark red", "red"]  # the model of the test prefers dark pictures
    moves = [" ".join(n.split()) for n in page.texts("#zoo-results .zoo-numbers")]
    assert moves[0] == "1 match 100 %" and moves[1].startswith("▲ 2 → 1 score 0.98")
    assert moves[2] == "2 match 99 %" and moves[3] == "▼ 1 → 2 score 1.000"
    page.all("#zoo-rerank input")[0].click()
    page.until(lambda: "re-ranked" not in page.status())
    assert page.names()[:2] == ["red", "dark red"]


def test_a_picture_finds_pictures_and_names(page, tmp_path):
    Image.new("RGB", (40, 30), (250, 10, 0)).save(tmp_path / "mine.png")
    page.drop(tmp_path / "mine.png")
    page.until(lambda: "your picture" in page.status())
    assert page.names()[0] == "red"
    assert page.texts("#zoo-names .zoo-name")[:2] == ["red", "dark red"]
    page.all("#zoo-names .zoo-row")[1].click()  # what the words of a name look at in the dropped picture
    page.until(lambda: len(page.all(".zoo-heat img")) == 2)
    assert page.texts(".zoo-detail h2") == ["What each word of “dark red” looked at"]
    page.ask("green")  # takes the picture's place
    page.until(lambda: not page.all("#zoo-picture img"))
    assert not page.all("#zoo-names .zoo-row") and page.names()[0] == "green"


def test_a_result_opens_a_heat_map_for_each_word(page):
    page.ask("red blue")
    page.all(".zoo-card")[0].click()
    page.until(lambda: len(page.all(".zoo-heat img")) == 2)
    assert page.texts(".zoo-figure figcaption") == ["picture", "red", "blue"]
    assert page.texts(".zoo-legend")[0].replace("\n", " ") == "looked less more; each word on its own scale"
    corners = """const image = document.querySelectorAll('.zoo-heat img')[0], c = document.createElement('canvas');
        c.width = image.naturalWidth; c.height = image.naturalHeight; const g = c.getContext('2d');
        g.drawImage(image, 0, 0); const at = (x, y) => [...g.getImageData(x, y, 1, 1).data];
        return [at(2, 2), at(c.width - 3, c.height - 3)]"""
    hot, cold = page.driver.execute_script(corners)
    assert hot[0] > 150 > hot[2] and cold[2] > cold[0]  # yellow where the word looked, blue where not
    page.all(".zoo-close")[0].click()
    page.until(lambda: not page.all(".zoo-detail"))


def test_names_in_another_language(page):
    page.all("#zoo-language input")[0].click()
    page.until(lambda: page.all("#zoo-language [role=option]"))
    page.all("#zoo-language [role=option]")[1].click()
    page.until(lambda: page.names()[:3] == ["rot", "dunkelrot", "green"])
    assert page.all("#zoo-results .zoo-name")[0].get_attribute("lang") == "de"


def choose(page, part, place):
    page.all(f"{part} input")[0].click()
    page.until(lambda: page.all(f"{part} [role=option]"))
    page.all(f"{part} [role=option]")[place].click()


def test_filters_by_folder_and_by_metadata(page):
    choose(page, "#zoo-folder", 2)  # all folders, the top one, sky
    page.until(lambda: page.names() == ["blue", "yellow"])
    assert page.status() == "The first 2 pictures where folder = 'sky'"
    page.ask("red")
    assert page.names() == ["yellow", "blue"]
    field = page.all("#zoo-where input, #zoo-where textarea")[0]
    field.send_keys("year < 2019\n")
    page.until(lambda: page.names() == ["blue"])
    assert "where folder = 'sky' and (year < 2019)" in page.status()
    field.send_keys(" or\n")
    page.until(lambda: page.all(".zoo-error"))
    assert "is not understood" in page.status() and page.names() == ["blue"]
    field.clear()
    field.send_keys("yaer = 1\n")
    page.until(lambda: "no column 'yaer'; there are:" in page.status())
    field.send_keys("\ue003" * 8 + "\n")  # Backspace
    page.until(lambda: len(page.names()) == 2)
    choose(page, "#zoo-folder", 0)
    page.until(lambda: len(page.names()) == 6)


def test_slash_arrows_and_escape(page):
    page.ask("green")
    page.driver.execute_script("document.querySelector('.zoo-card').focus()")
    place = "return [...document.querySelectorAll('.zoo-card')].indexOf(document.activeElement)"
    columns = page.driver.execute_script("""const tops = [...document.querySelectorAll('.zoo-card')]
        .map(card => Math.round(card.getBoundingClientRect().top)); return tops.filter(top => top === tops[0]).length""")
    for key, wanted in (("\ue014", 1), ("\ue014", 2), ("\ue012", 1), ("\ue015", 1 + columns), ("\ue013", 1)):
        page.driver.switch_to.active_element.send_keys(key)  # right, right, left, down, up
        assert page.driver.execute_script(place) == (wanted if wanted < 6 else 1)
    page.driver.switch_to.active_element.send_keys("\ue007")  # Enter
    page.until(lambda: page.all(".zoo-heat img"))
    page.driver.switch_to.active_element.send_keys("\ue00c")  # Escape
    page.until(lambda: not page.all(".zoo-detail"))
    page.driver.find_element("tag name", "body").send_keys("/")
    focused = "return document.activeElement.closest('#zoo-query') !== null && document.activeElement.value"
    assert page.driver.execute_script(focused) == "green"
    page.driver.switch_to.active_element.send_keys("/")  # in the field it is a letter
    assert page.driver.execute_script(focused) == "green/"


def test_keyboard_alone(page):
    page.ask("green")

    def tab_to_a_card() -> bool:
        for _ in range(30):
            page.driver.switch_to.active_element.send_keys("\ue004")  # Tab
            if "zoo-card" in (page.driver.switch_to.active_element.get_attribute("class") or ""):
                return True
        return False

    def opened() -> bool:
        """On a busy machine the page may still be drawn anew under the first key: a user presses it again."""
        if tab_to_a_card():
            page.driver.switch_to.active_element.send_keys("\ue007")  # Enter
        time.sleep(2)
        return page.texts(".zoo-detail h2") == ["What each word of “green” looked at"]

    page.until(opened, seconds=30)


def test_errors_are_said_in_the_page(page, tmp_path, folder):
    page.ask("green")
    (tmp_path / "notes.png").write_text("no picture")
    page.drop(tmp_path / "notes.png")
    page.until(lambda: page.all(".zoo-error"))
    assert "notes.png: not a picture" in page.status() and "Traceback" not in page.status()
    assert page.names()[0] == "green"  # what was there stays

    lost = folder / "pictures" / "3.png"
    content = lost.read_bytes()
    lost.unlink()
    try:
        page.open()
        page.until(lambda: page.texts(".zoo-gone") in ([], ["cannot be read"]))  # [] where the small copy was kept
        page.ask("blue")
        page.all(".zoo-card")[0].click()
        page.until(lambda: page.all(".zoo-error"))
        assert "3.png: no such file" in page.status()
    finally:
        lost.write_bytes(content)


def test_text_from_the_collection_is_text(page):
    from demo_server import HOSTILE

    assert HOSTILE in page.names()
    page.ask("${1 + 1} {{x}} <b>bold</b>")
    assert page.driver.title == "zoo demo" and not page.all(".zoo-status b")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("wide", [360, 390])
def test_phone_width_has_no_sideways_scroll(browser, dark, wide):
    browser.open(width=wide, height=740, dark=dark)
    browser.ask("red")
    browser.all("#zoo-rerank input")[0].click()
    browser.until(lambda: "re-ranked" in browser.status())
    browser.driver.execute_script("document.querySelector('.zoo-card').click()")
    browser.until(lambda: browser.all(".zoo-heat img"))
    width, inner = browser.driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= inner == wide
    outside = """return [...document.querySelectorAll('.zoo-card *, .zoo-detail *, .zoo-side *')]
        .filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"""
    assert browser.driver.execute_script(outside) == []
    light = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128"
    assert browser.driver.execute_script(light) is not dark


def test_no_request_leaves_the_machine(page, tmp_path):
    """gradio#1450. Last but one: the log holds all that every test before asked for."""
    page.ask("red")
    messages = [json.loads(entry["message"])["message"] for entry in page.driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    urls += [m["params"]["url"] for m in messages if m["method"] == "Network.webSocketCreated"]
    asked = {urlsplit(url).hostname for url in urls if urlsplit(url).scheme in ("http", "https", "ws", "wss")}
    assert len(urls) > 20 and asked == {"127.0.0.1"}
    refused = [e["message"] for e in page.driver.get_log("browser") if "Content Security Policy" in e["message"]]
    assert refused == []  # nor would any have, without the policy


def test_serves_no_files_and_no_other_names(server, folder):
    def status(path, host="127.0.0.1"):
        connection = HTTPConnection(urlsplit(server).netloc, timeout=10)
        connection.request("GET", path, headers={"Host": host})
        code = connection.getresponse().status
        connection.close()
        return code

    for path in (folder / "pictures" / "0.png", folder / "index" / "manifest.json", Path(__file__)):
        assert status(f"/gradio_api/file={path}") == 403
    assert status("/") == 200 and status("/thumbnail?key=0.png") == 200
    for key in ("", "6.png", "../manifest.json", str(folder / "pictures" / "0.png")):
        assert status(f"/thumbnail?key={key}") == 404
    assert status("/", host="elsewhere.example") == 400
