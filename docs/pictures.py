"""Takes pictures of the documentation again, of the demo's bookshop: its notebook, its console and a training's report.

    python -m pip install ipykernel nbclient nbconvert pillow playwright
    python docs/pictures.py notebook console report

The browser is the `chromium-headless-shell` of the PATH, or `chromium`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import svc

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
SVC = (sys.executable, "-m", "svc")
ADDRESS = "http://127.0.0.1:8080"
NOTEBOOK_WIDTH = 860
FIRST, LAST = 3, 6
"""The cells on the picture, counted among those with code: from the training to the lists for many readers."""


def take_notebook(browser: Any, folder: Path) -> None:
    """`notebook-light.png` and `notebook-dark.png`: the tutorial's notebook, run by Jupyter's kernel, as JupyterLab shows it."""
    import nbclient
    import nbformat
    from nbconvert import HTMLExporter

    notebook = nbformat.read(DOCS / "tutorial.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources, coalesce_streams=True).execute()
    for theme in ("light", "dark"):
        path = folder / f"{theme}.html"
        path.write_text(HTMLExporter(theme=theme).from_notebook_node(notebook)[0], encoding="utf-8")
        page = browser.new_page(viewport={"width": NOTEBOOK_WIDTH, "height": 900}, color_scheme=theme)
        page.route("http*://**", lambda route: route.abort())  # nothing that it shows comes from elsewhere
        page.goto(path.as_uri())
        cells = page.locator(".jp-CodeCell")
        first, last = cells.nth(FIRST - 1).bounding_box(), cells.nth(LAST - 1).bounding_box()
        height = last["y"] + last["height"] - first["y"]
        clip = {"x": 0, "y": first["y"], "width": NOTEBOOK_WIDTH, "height": height}
        _screenshot(page, f"notebook-{theme}", clip=clip, full_page=True)


def take_console(browser: Any, folder: Path) -> None:
    """`console-*.png` in two sizes, the wide dark one while the server answers other requests, and `api-reference.png`."""
    with _shop(folder) as key:
        for name, width, height in (("wide-light", 1440, 1000), ("narrow-light", 360, 740), ("narrow-dark", 360, 740)):
            options = {"color_scheme": name.rpartition("-")[2], "reduced_motion": "reduce"}
            page = _signed_in(browser, key, viewport={"width": width, "height": height}, **options)
            if name != "narrow-light":  # which shows the opened page
                page.get_by_label("User id").fill("u0001")
                page.get_by_label("Number of results").fill("8")
                page.keyboard.press("Enter")
                page.locator(".ranking > li").nth(7).wait_for()
            if name == "wide-light":
                page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
            _screenshot(page, f"console-{name}")
        page = _signed_in(browser, key, viewport={"width": 1440, "height": 900}, color_scheme="dark")
        page.get_by_label("Recipe", exact=True).select_option("books-cold-start")
        page.get_by_label("A new item").check()
        for category in ("Crime", "History"):
            page.get_by_label(category, exact=True).check()
        page.get_by_label("year", exact=True).fill("2025")
        page.get_by_label("Number of results").fill("8")
        page.locator("#answer").evaluate("node => node.replaceChildren()")
        page.get_by_role("button", name="Recommend").click()
        page.locator(".ranking li").first.wait_for()
        page.wait_for_timeout(10_000)  # for the lines of the live figures
        _screenshot(page, "console-wide-dark", full_page=True)

        reference = _signed_in(browser, key, viewport={"width": 1200, "height": 900})
        reference.goto(f"{ADDRESS}/v1/docs")
        reference.locator(".opblock-summary-control").first.click()
        reference.get_by_role("button", name="Try it out").first.wait_for()
        reference.wait_for_timeout(1000)  # until it has opened
        reference.evaluate("document.activeElement.blur()")
        _screenshot(reference, "api-reference")


def take_report(browser: Any, folder: Path) -> None:
    """`training-report.png`: the top of the report of `books`, trained twice, so that two runs are compared."""
    recipe = _recipes(folder) / "books.yaml"
    for _ in range(2):
        svc.train(recipe, n_trials=12, report=folder / "report.html")
    page = browser.new_page(viewport={"width": 1180, "height": 1900}, color_scheme="light")
    page.goto((folder / "report.html").as_uri())
    _screenshot(page, "training-report")


def _signed_in(browser: Any, key: str, **options: Any) -> Any:
    """Open the console in a new tab, sign in with the API key, and return the tab."""
    page = browser.new_page(**options)
    page.goto(f"{ADDRESS}/")
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    page.locator(".ranking li").first.wait_for()  # the answer that the console begins with
    return page


def _screenshot(page: Any, name: str, **options: Any) -> None:
    """Save a picture of the page with 256 colours, a third of the size of the browser's own file."""
    from PIL import Image

    path = IMAGES / f"{name}.png"
    page.screenshot(path=path, **options)
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


@contextmanager
def _shop(folder: Path) -> Iterator[str]:
    """Train and serve the demo's two recipes, and yield the API key.

    A second process sends requests for `books`, for at most 300 s. It and the server end with the block.
    """
    recipes = _recipes(folder)
    for name in ("books", "books-cold-start"):
        svc.train(recipes / f"{name}.yaml", n_trials=4)
    lines = (folder / "shop" / "keys.env").read_text(encoding="utf-8").splitlines()
    keys = {name: value.strip("'\"") for name, _, value in (line.partition("=") for line in lines)}
    own = {"SVC_API_KEYS": keys["DEMO_API_KEYS"], "SVC_CLIENT_KEY": keys["DEMO_API_KEY"], "SVC_METRICS_ENABLED": "1"}
    environment = {**os.environ, **own}
    server = subprocess.Popen([*SVC, "serve", "--recipes", str(recipes)], env=environment, stderr=subprocess.DEVNULL)
    asking = [
        sys.executable,
        "-m",
        "benchmarks",
        "load",
        ADDRESS,
        "--recipe",
        "books",
        "--users",
        str(folder / "shop/data/purchases.csv"),
    ]
    started = [server]
    try:
        _wait_for_server()
        started.append(
            subprocess.Popen(
                [*asking, "--connections", "1", "--seconds", "300"], env=environment, stdout=subprocess.DEVNULL
            )
        )
        yield keys["DEMO_API_KEY"]
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def _recipes(folder: Path) -> Path:
    """Write the demo's files, and return the folder of its recipes."""
    subprocess.run([*SVC, "demo", "--files-only", "--folder", "shop"], cwd=folder, check=True, capture_output=True)
    return folder / "shop" / "recipes"


def _wait_for_server() -> None:
    ready = ["curl", "-sS", "--retry", "100", "--retry-delay", "1", "--retry-all-errors", f"{ADDRESS}/v1/health/ready"]
    subprocess.run(ready, check=True, capture_output=True)


PICTURES = {"notebook": take_notebook, "console": take_console, "report": take_report}


def main(names: list[str]) -> None:
    """Take the pictures of these names."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                PICTURES[name](browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
