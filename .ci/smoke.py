"""The spine once, as a user would: recipe -> run -> predict -> index -> search -> page in a headless browser.

Its argument is the README's command that ends with the demo running. Run in the checkout, with ./.venv in place.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

from PIL import Image, ImageDraw

ZOO = str(Path(sys.executable).with_name("zoo"))


def zoo(*words: str) -> str:
    print("$ zoo", *words, flush=True)
    done = subprocess.run([ZOO, *map(str, words)], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, f"exit code {done.returncode}"
    print(done.stdout[-1500:], flush=True)
    return done.stdout


def draw(folder: Path) -> Path:
    """Two classes of pictures, 12 each: discs and squares in many colours."""
    for kind in ("disc", "square"):
        (folder / kind).mkdir(parents=True)
        for i in range(12):
            picture = Image.new("RGB", (48, 40), "white")
            shape = ImageDraw.Draw(picture).ellipse if kind == "disc" else ImageDraw.Draw(picture).rectangle
            shape((6 + i % 4, 5, 34 + i % 5, 33), fill=(20 * i, 255 - 20 * i, (60 * i) % 256))
            picture.save(folder / kind / f"{i}.png")
    return folder


def search_page(url: str, query: str) -> list[str]:
    """Names of the results that a headless browser sees."""
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        wait = WebDriverWait(driver, 60)
        for last in (False, False, True):
            try:
                driver.get(url)
                wait.until(lambda d: d.find_elements("css selector", "#zoo-results .zoo-card"))
                driver.find_element("css selector", "#zoo-query input, #zoo-query textarea").send_keys(query + "\n")
                wait.until(lambda d: f"“{query}”" in d.find_element("id", "zoo-status").text)
                break
            except WebDriverException:  # a busy machine: a person loads the page anew
                print("no answer; the page:", driver.find_element("tag name", "body").text[:2000], flush=True)
                if last:
                    raise
        names = [e.text for e in driver.find_elements("css selector", "#zoo-results .zoo-name")]
        driver.save_screenshot(os.environ.get("ZOO_SHOT", str(Path(mkdtemp()) / "page.png")))
        return names
    finally:
        driver.quit()


def main(demo_command: str) -> None:
    folder = draw(Path(mkdtemp()) / "shapes")
    runs = folder.parent / "runs"
    zoo("train", "image_finetune", "--data", folder, "--runs", runs, "--epochs", "4", "--batch-size", "8")
    run = next(runs.iterdir())
    zoo("eval", run, folder)
    zoo("predict", run, folder / "disc" / "3.png")
    index = folder.parent / "shapes.index"
    zoo("index", "build", index, folder)
    hits = json.loads(zoo("search", index, "red circle", "-k", "3", "--rerank", "8", "--json"))
    assert len(hits) == 3 and all(0 <= hit["match"] <= 1 for hit in hits)

    command = demo_command.strip() + " --no-browser --port 7999"
    print("$", command, flush=True)
    demo = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        url = next(found[0] for line in demo.stdout if (found := re.findall(r"http://127\.0\.0\.1:\d+", line)))
        if not shutil.which("chromedriver"):
            print("demo is up; not searched: chromium and chromium-driver are not installed")
            return
        names = search_page(url, "smiling cat")
        print("demo, 'smiling cat':", names[:8])
        assert any("cat" in name for name in names[:8]), names
    finally:
        os.killpg(demo.pid, signal.SIGINT)


if __name__ == "__main__":
    main(sys.argv[1])
    print("smoke run: fine")
