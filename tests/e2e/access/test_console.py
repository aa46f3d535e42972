"""The console and the API reference in a real browser: display, mouse, keyboard and accessibility."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from svc.artifact import layout
from svc.artifact.keys import parse_signing_keys
from svc.artifact.versions import Versions
from svc.model.codec import encode
from svc.model.history import History
from svc.serving.api.authentication import hash_api_key
from svc.settings import Settings
from tests.e2e.server import Server, write_recipe
from tests.serving.artifacts import SIGNING_KEYS, header, write_artifact
from tests.serving.client import N_ITEMS, encoder, model

pytestmark = pytest.mark.integration
PATIENCE_MS = 60_000
"""One click has taken 20 seconds while several browsers and trainings shared two cores."""
playwright = pytest.importorskip("playwright.sync_api", reason="playwright comes with the group `integration`")
BROWSERS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
KEY = "A" * 43
EVIL = '<img src="x" onerror="window.hacked = true"> & </script>'
REFUSED = "Failed to load resource: the server responded with a status of"
PARTS = [
    {"class": "CosineKNNRecommender", "answers": "known users", "bytes": 2_000_000},
    {"class": "IALSRecommender", "answers": "features and seeds", "bytes": 3_400_000},
]
SIZES = {"narrow": {"width": 360, "height": 740}, "wide": {"width": 1440, "height": 900}}


def write_home(folder: Path) -> Path:
    """Write four recipe files and return their folder.

    `movies` has features and metadata, `plain` has neither, `stub` has no artifact, and `broken` does not parse.
    """
    side = {"dimension": encoder().dim, "columns": list(encoder().columns)}
    about = {
        "best_class": "IALSRecommender",
        "best_score": 0.1234,
        "data_stats": {"n_users": 20, "n_items": N_ITEMS},
    }
    features = {"version": 1, "active": True, "user": side, "item": side}
    write_artifact(folder / "movies.svc", model(), head=header(features=features, **about))
    write_artifact(folder / "plain.svc", model(features=False), head=header(**about, parts=PARTS))
    with (folder / "items.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [[f"i{item}", f"Story number {item}", 1960 + item] for item in range(N_ITEMS - 1)]
        csv.writer(file).writerows([["item_id", "title", "year"], *rows, [f"i{N_ITEMS - 1}", EVIL, 1960]])
    recipes = folder / "recipes"
    recipes.mkdir()
    metadata = {
        "source": {"type": "csv", "path": str(folder / "items.csv")},
        "id_column": "item_id",
        "fields": ["title", "year"],
        "filter_fields": [{"name": "year", "kind": "numerical"}],
    }
    (folder / "new.csv").write_text("item_id,tag,age\nn1,a,20\n", encoding="utf-8")
    listed = {"type": "csv", "path": str(folder / "new.csv")}
    columns = [{"name": "tag", "kind": "categorical"}, {"name": "age", "kind": "numerical"}]
    write_recipe(
        recipes,
        "movies",
        folder / "movies.svc",
        item_metadata=metadata,
        training={"algorithms": ["IALSRecommender"]},
        features={"item": {"source": listed, "id_column": "item_id", "columns": columns}},
        serving={"new_items": {"source": listed, "max_share": 0}, "users": True},
    )
    write_recipe(recipes, "plain", folder / "plain.svc")
    write_recipe(recipes, "stub", folder / "nothing.svc")
    (recipes / "broken.yaml").write_text("name: [")
    return recipes


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def server(recipes: Path) -> Iterator[Server]:
    keys = f"test:{hash_api_key(KEY)}"
    # On processors that a browser and other tests share, an answer may wait longer than the default of two seconds.
    with Server(recipes, env={"SVC_API_KEYS": keys, "SVC_MAX_QUEUE_SECONDS": "60"}) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        path = next(filter(None, map(shutil.which, BROWSERS)), None) or started.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("no Chromium is installed")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        playwright.expect.set_options(timeout=PATIENCE_MS)
        chromium = started.chromium.launch(executable_path=path, args=arguments)
        yield chromium
        chromium.close()


class Tab:
    """A browser page that records console errors, page errors and requests to other origins."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.url = url
        self.context = browser.new_context(viewport=context.pop("viewport", SIZES["wide"]), **context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self._hear(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(f"pageerror: {error}"))
        self.page.on("request", self._check)

    def _hear(self, kind: str, text: str) -> None:
        """Record errors and warnings, except the error that Chromium logs for each status of 400 and above."""
        if kind in ("error", "warning") and not text.startswith(REFUSED):
            self.complaints.append(f"{kind}: {text}")

    def _check(self, request: Any) -> None:
        if not request.url.startswith(self.url + "/"):
            self.complaints.append(f"request to {request.url}")

    def open(self, key: str | None = KEY) -> Any:
        """Open the console, and sign in if a key is given."""
        self.page.goto(f"{self.url}/")
        if key is not None:
            self.page.get_by_label("API key").fill(key)
            self.page.keyboard.press("Enter")
            self.heading("movies").wait_for()
        return self.page

    def heading(self, name: str) -> Any:
        return self.page.get_by_role("heading", name=name, exact=True)

    def clear_user(self) -> None:
        """Wait for the user id that the console fills in when it opens, and clear it."""
        user = self.page.get_by_label("User id")
        playwright.expect(user).not_to_have_value("")
        user.fill("")

    def recommend(self, user: str | None = None, count: int | None = None) -> list[str]:
        """Fill in the given fields, press the Recommend button, and return the names in the list that appears."""
        for label, value in (("User id", user), ("Number of results", count)):
            if value is not None:
                self.page.get_by_label(label).fill(str(value))
        self.page.locator("#answer").evaluate("node => node.replaceChildren()")
        self.page.get_by_role("button", name="Recommend").click()
        try:
            self.page.locator(".ranking li").first.wait_for()
        except playwright.Error:
            pytest.fail(f"no list: {self.page.locator('#try').inner_text()}\n{self.complaints}")
        return list(self.page.locator(".ranking strong").all_text_contents())

    def curl(self) -> str:
        return str(self.page.locator("#curl").text_content())


@contextmanager
def tab_of(browser: Any, server: Server, **context: Any) -> Iterator[Tab]:
    """Yield a page of a server, and fail at the end if the page recorded a complaint."""
    made = Tab(browser, server.url, **context)
    yield made
    made.context.close()
    assert made.complaints == []


@pytest.fixture
def tab(browser: Any, server: Server) -> Iterator[Tab]:
    """Yield a page of a server that requires a key."""
    with tab_of(browser, server) as made:
        yield made


def test_a_correct_key_opens_the_console_and_is_kept_for_the_tab(tab: Tab) -> None:
    """The console shows nothing without a valid key and explains why it refuses a wrong one.

    The key survives a reload, is unknown to other tabs, and is removed by signing out.
    """
    page = tab.open(key=None)
    field, error = page.get_by_label("API key"), page.locator("#key-error")
    field.fill("short")
    page.keyboard.press("Enter")
    playwright.expect(error).to_contain_text("43 characters")
    field.fill("B" * 43)
    page.keyboard.press("Enter")
    playwright.expect(error).to_contain_text("does not know this key")
    assert not page.locator("#content").is_visible()
    field.fill(KEY)
    page.keyboard.press("Enter")
    tab.heading("movies").wait_for()
    page.reload()
    tab.heading("movies").wait_for()
    other = tab.context.new_page()
    other.goto(tab.url)
    other.get_by_label("API key").wait_for()
    page.get_by_role("button", name="Sign out").click()
    field.wait_for()
    assert page.evaluate("sessionStorage.length + localStorage.length") == 0


def test_recipes_show_their_state(tab: Tab) -> None:
    """The console shows the model of each served recipe, and the reason for each missing model or skipped file."""
    page = tab.open()
    movies = page.get_by_role("listitem").filter(has=tab.heading("movies"))
    for text in ("serving", "IALS", "0.1234", "ndcg@20", "20 × 60", "ago", "1, the list was read"):
        playwright.expect(movies).to_contain_text(text)
    plain = page.get_by_role("listitem").filter(has=tab.heading("plain"))
    for text in ("Answers known users", "CosineKNN, 2.0 MB", "Answers features and seeds", "IALS, 3.4 MB"):
        playwright.expect(plain).to_contain_text(text)
    stub = page.get_by_role("listitem").filter(has=tab.heading("stub"))
    playwright.expect(stub).to_contain_text("no model")
    playwright.expect(stub).to_contain_text("There is no model yet: artifact not found: ")
    playwright.expect(stub).to_contain_text("svc train FOLDER/stub.yaml")
    playwright.expect(page.get_by_role("listitem").filter(has=tab.heading("broken"))).to_contain_text("file skipped")
    playwright.expect(page.locator("#health")).to_have_text("degraded, 2 of 3 loaded")
    assert page.locator("#recipes h3").all_text_contents() == ["stub", "broken", "movies", "plain"]
    assert page.get_by_label("Recipe", exact=True).locator("option").all_text_contents() == ["movies", "plain"]


def test_the_curl_command_returns_the_items_of_the_list(tab: Tab) -> None:
    """The curl command returns the items of the list, and no part of the page contains the key."""
    page = tab.open()
    names = tab.recommend("u3", 5)
    assert len(names) == 5
    assert KEY not in page.content()
    assert '-H "X-API-Key: $SVC_CLIENT_KEY"' in tab.curl()
    done = subprocess.run(
        ["bash", "-c", tab.curl()],
        env={**os.environ, "SVC_CLIENT_KEY": KEY},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert [item["title"] for item in json.loads(done.stdout)["items"]] == names
    assert page.locator(".ranking .score").first.text_content()


def test_an_unknown_user_gets_code_message_and_advice(tab: Tab) -> None:
    """An unknown user gets the error code, the message and advice.

    Shell characters in the user id reach the request of the curl command unchanged.
    """
    page = tab.open()
    tab.clear_user()
    page.get_by_label("User id").fill('o\'brien "$HOME" `id` \\')
    page.keyboard.press("Enter")
    alert = page.locator(".failure")
    playwright.expect(alert).to_contain_text("UNKNOWN_USER")
    playwright.expect(alert).to_contain_text("Training never saw this user")
    done = subprocess.run(
        ["bash", "-c", tab.curl().replace("curl -sS", "printf '%s\\n'")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1])["user_id"] == 'o\'brien "$HOME" `id` \\'


def test_random_user_picks_a_known_user_and_shows_the_history(tab: Tab) -> None:
    """The button Random user fills in a user of the training data and shows their recommendations and history."""
    page = tab.open()
    page.locator(".ranking li").first.wait_for()  # the answer for the random user of the opened page
    with page.expect_response(lambda response: response.url.endswith(":recommend")):
        page.get_by_role("button", name="Random user").click()
    user = page.get_by_label("User id").input_value()
    playwright.expect(page.locator("#answer-title")).to_have_text(f"For user {user}, by movies")
    history = page.locator(".history")
    playwright.expect(history.locator("summary")).to_have_text(f"Chosen before: {int(user[1:]) + 1}")
    assert "Story number 0" in history.inner_text()
    page.get_by_text("JSON", exact=True).click()
    shown = json.loads(page.locator(".raw pre").inner_text())
    assert [item["item_id"] for item in shown["items"]] == page.locator(".ranking dd code").all_text_contents()
    assert page.get_by_role("button", name=re.compile("^Copy the id i")).count() == 10


def test_the_console_opens_with_an_answer(tab: Tab) -> None:
    """The console opens with recommendations for a random user, and names the missing input of an empty form."""
    page = tab.open()
    page.locator(".ranking li").first.wait_for()
    assert page.get_by_label("User id").input_value().startswith("u")
    playwright.expect(page.locator(".history summary")).to_contain_text("Chosen before")
    tops = [page.locator(place).bounding_box()["y"] for place in ("#try", "#recipes", "#figures")]
    assert tops == sorted(tops)
    tab.clear_user()
    page.keyboard.press("Enter")
    problem = page.locator("#attempt-problem")
    playwright.expect(problem).to_have_text("For whom? Give a user id, choose items, or press Random user.")
    page.get_by_label("User id").fill("u3")
    playwright.expect(problem).to_be_empty()
    page.get_by_label("Some items").check()
    page.get_by_role("button", name="Recommend").click()
    playwright.expect(problem).to_have_text("Like what? Choose at least one item.")


def test_a_change_of_the_form_removes_the_answer(tab: Tab) -> None:
    """Any change of the form removes the answer or the error of the last request."""
    page = tab.open()
    tab.recommend("u3")
    page.get_by_label("Number of results").fill("3")
    assert page.locator(".ranking").count() == 0
    playwright.expect(page.locator("#answer-title")).to_have_text("Answer")
    page.get_by_label("User id").fill("nobody")
    page.keyboard.press("Enter")
    page.locator(".failure").wait_for()
    page.get_by_label("Some items").check()
    assert page.locator(".failure").count() == 0


def test_advice_fits_the_features_of_the_model(tab: Tab) -> None:
    """The advice for an unknown user names "Describe a new user" only if the model has user features."""
    page = tab.open()
    for recipe, there, other in (
        ("movies", "Describe a new user", "button"),
        ("plain", "button", "Describe a new user"),
    ):
        page.get_by_label("Recipe", exact=True).select_option(recipe)
        page.get_by_label("User id").fill("nobody")
        page.keyboard.press("Enter")
        playwright.expect(page.locator(".failure")).to_contain_text(there)
        assert other not in page.locator(".failure").inner_text()


def test_seeds_are_found_by_title(tab: Tab) -> None:
    """Seeds can be searched by title, chosen and removed.

    An id that is no known item can be used as well.
    """
    page = tab.open()
    page.get_by_label("Some items").check()
    search = page.get_by_role("combobox", name="Items to start from")
    search.fill("number 41 story")
    page.locator("li[role=option]", has_text="Story number 41").click()
    search.fill("no-such-item")
    page.locator("li[role=option]", has_text="use as an id").click()
    assert '"seed_items":["i41","no-such-item"]' in tab.curl()
    page.get_by_role("button", name="no-such-item remove").click()
    names = tab.recommend()
    assert len(names) == 10
    assert "Story number 41" not in names


def test_rejected_items_are_sent_as_dislikes_and_not_recommended(tab: Tab) -> None:
    """A rejected item is sent in `dislikes` and not recommended, until it is removed from the form."""
    page = tab.open()
    best = tab.recommend("u3")[0]
    page.get_by_role("combobox", name="Items rejected just now").fill(best)
    page.locator("li[role=option]", has_text=best).first.click()
    assert f'"dislikes":["i{best.rsplit(maxsplit=1)[1]}"]' in tab.curl()
    assert best not in tab.recommend()
    page.get_by_role("button", name=f"{best} remove").click()
    assert "dislikes" not in tab.curl()


def test_users_for_an_item_are_offered_if_the_recipe_sets_serving_users(tab: Tab) -> None:
    """The form "Users for an item" sends one item and an order, and shows the users of the API's answer.

    It hides the filters of items. A recipe without `serving.users` does not offer it.
    """
    page = tab.open()
    page.get_by_label("Users for an item").check()
    assert not page.locator("#narrow").is_visible()
    page.get_by_role("button", name="Recommend").click()
    playwright.expect(page.locator("#attempt-problem")).to_have_text("For what? Choose one item.")
    page.get_by_role("combobox", name="The item").fill("number 41 story")
    page.locator("li[role=option]", has_text="Story number 41").click()
    page.get_by_label("Order by").select_option("to whom it says most")
    assert '{"item_id":"i41","order":"lift","limit":10}' in tab.curl()
    found = tab.recommend()
    playwright.expect(page.locator("#answer-title")).to_have_text("Users for Story number 41, by movies")
    page.get_by_text("JSON", exact=True).click()
    answer = json.loads(page.locator(".raw pre").inner_text())
    assert [user["user_id"] for user in answer["users"]] == found
    assert len(found) == 10
    page.get_by_label("Recipe", exact=True).select_option("plain")
    assert page.get_by_label("Users for an item").count() == 0
    assert page.locator("#narrow").is_visible()


def test_a_history_without_user_id_gives_filtered_items_with_reasons(tab: Tab) -> None:
    """A request with a history and no user id shows filtered items, each with its reasons.

    The page names the basis of the ranking and why it has fewer items than requested.
    """
    page = tab.open()
    tab.clear_user()
    page.get_by_role("combobox", name="Items chosen just now").fill("number 41 story")
    page.locator("li[role=option]", has_text="Story number 41").click()
    page.get_by_text("Filters, reasons and diversity").click()
    page.get_by_label("year from").fill("1970")
    page.get_by_label("year to").fill("1974")
    assert page.get_by_label("Say why each item is there").is_checked()
    assert '"history":["i41"]' in tab.curl()
    assert '"filter":{"year":{"gte":1970,"lte":1974}}' in tab.curl()
    names = tab.recommend()
    assert sorted(names) == [f"Story number {item}" for item in range(10, 15)]
    answer = page.locator("#answer")
    playwright.expect(answer).to_contain_text("The ranking goes by: history")
    for item in answer.locator("ol.ranking > li").all():
        is_raised = not {"-", "−"} & {*item.locator(".score").inner_text()}
        reason = item.get_by_text("because you chose Story number 41 (100 %)")
        assert reason.count() == is_raised, "only what raises a score is a reason"
    playwright.expect(page.locator("#answer-title")).to_have_text("For somebody who chose Story number 41, by movies")
    playwright.expect(answer).to_contain_text("The page is short because no more items satisfy the filter.")


def test_a_history_is_moved_by_keys_by_buttons_and_by_drag(tab: Tab) -> None:
    """Items of a history can be reordered by arrow keys, buttons and dragging.

    The request follows the order on the page. The focus stays on the moved item, and screen readers get its new place.
    """
    page = tab.open()
    tab.clear_user()
    for number in (41, 7, 23):
        page.get_by_role("combobox", name="Items chosen just now").fill(f"number {number} story")
        page.locator("li[role=option]", has_text=f"Story number {number}").first.click()
    chips = page.get_by_role("list", name="Chosen: Items chosen just now").locator(".chip")
    playwright.expect(chips).to_contain_text(["number 41", "number 7", "number 23"])
    assert '"history":["i41","i7","i23"]' in tab.curl()
    chips.nth(2).focus()
    page.keyboard.press("ArrowLeft")
    assert '"history":["i41","i23","i7"]' in tab.curl()
    playwright.expect(chips.nth(1)).to_be_focused()
    playwright.expect(page.get_by_text("Story number 23 is now 2 of 3")).to_be_attached()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert '"history":["i23","i41","i7"]' in tab.curl()
    later = page.get_by_role("button", name="Move Story number 23 later")
    later.click()
    playwright.expect(later).to_be_focused()
    assert '"history":["i41","i23","i7"]' in tab.curl()
    assert page.get_by_role("button", name="Move Story number 41 earlier").is_disabled()
    chips.nth(2).drag_to(chips.nth(0))
    assert '"history":["i7","i41","i23"]' in tab.curl()
    chips.nth(0).click()
    assert '"history":["i41","i23"]' in tab.curl()
    tab.recommend()
    playwright.expect(page.locator("#answer-title")).to_contain_text("who chose Story number 41, Story number 23")


def test_a_history_with_an_order_is_listed_from_oldest_to_newest(browser: Any, tmp_path: Path) -> None:
    """The history is listed from oldest to newest if the model stores its order.

    Of a long history, the page shows the latest 20 items.
    """
    ordered = model(features=False)
    plain = ordered.history
    ordered.history = History(plain.offsets, plain.columns, plain.weights, recency=0.5)
    write_artifact(tmp_path / "ordered.svc", ordered)
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    write_recipe(recipes, "ordered", tmp_path / "ordered.svc")
    with Server(recipes) as server, tab_of(browser, server) as tab:
        page = tab.open(key=None)
        tab.heading("ordered").wait_for()
        page.get_by_label("User id").fill("u19")
        page.keyboard.press("Enter")
        history = page.locator(".history")
        n_items = len(plain.items(19))
        playwright.expect(history.locator("summary")).to_have_text(
            f"Chosen before: {n_items}, from the oldest to the newest"
        )
        shown = [f"i{column}" for column in plain.items(19)[-20:].tolist()]
        assert history.locator("ol code").all_text_contents() == shown


def test_the_page_says_why_it_is_short_and_how_many_items_have_score_0(tab: Tab) -> None:
    """The page does not mention score 0 if no item has it."""
    page = tab.open()
    tab.recommend("u1", 100)
    playwright.expect(page.locator("#answer")).to_contain_text("no more items may be shown")
    page.get_by_label("Number of results").fill("10")
    tab.recommend("u3")
    playwright.expect(page.locator("#answer")).not_to_contain_text("score 0")

    def with_two_zeros(route: Any) -> None:
        body = route.fetch().json()
        for item in body["items"][-2:]:
            item["score"] = 0
        route.fulfill(json=body)

    page.route("**/v1/recipes/movies:recommend", with_two_zeros)
    count = len(tab.recommend())
    playwright.expect(page.locator("#answer")).to_contain_text(
        f"2 of {count} items have score 0: nothing that the model learned links them to this user."
    )


def test_a_change_of_age_alone_does_not_replace_the_row_of_a_recipe(tab: Tab) -> None:
    """A refresh that changes only the age of a model keeps the row of its recipe.

    A replaced row would lose the focus and move the elements that a user is about to click.
    """
    page = tab.open()
    row = page.locator("#recipes > li").filter(has=tab.heading("movies"))
    row.evaluate("node => { node.dataset.kept = 'yes' }")
    for _ in range(2):
        page.wait_for_event("requestfinished", lambda request: request.url.endswith("/v1/health/details"))
    playwright.expect(page.locator("#recipes > li[data-kept]")).to_have_count(1)


def test_diversity_shows_the_answers_with_and_without_it(tab: Tab, server: Server) -> None:
    """Setting diversity shows the API's answers with and without it side by side.

    Items that only one of them contains are marked.
    """
    page = tab.open()
    assert len(tab.recommend("u3", 8)) == 8
    assert page.locator(".pages").count() == 0
    page.get_by_text("Filters, reasons and diversity").click()
    page.get_by_label("Diversity, from 0 to 1").fill("0.8")
    pages = page.locator(".pages section")
    playwright.expect(pages).to_have_count(2)
    assert pages.locator("h4").all_text_contents() == ["Without diversity", "With diversity 0.8"]
    shown = [set(pages.nth(place).locator(".said dd code").all_text_contents()) for place in range(2)]
    asked = {"user_id": "u3", "limit": 8, "explain": 3}
    for place, diversity in enumerate((0, 0.8)):
        body = {**asked, "diversity": diversity}
        answer = server.client.post("/v1/recipes/movies:recommend", json=body, headers={"X-API-Key": KEY}).json()
        assert {item["item_id"] for item in answer["items"]} == shown[place]
    assert shown[0] != shown[1]
    for place in range(2):
        marked = pages.nth(place).locator("li").filter(has=page.locator(".only")).locator(".said dd code")
        assert set(marked.all_text_contents()) == shown[place] - shown[1 - place]
    assert page.locator("#answer").get_by_text(re.compile("^because you chose Story number")).count() > 0
    assert '"diversity":0.8' in tab.curl()


def test_the_console_lists_versions_and_marks_the_live_one(browser: Any, tmp_path: Path) -> None:
    """The console lists the versions with the fields of `svc history`, and marks the live and held one.

    For a recipe that keeps one file, it names the setting that would keep versions.
    """
    home = tmp_path / "recipes"
    home.mkdir()
    write_recipe(home, "books", home / "shelf/books.svc")
    text = (home / "books.yaml").read_text(encoding="utf-8")
    (home / "books.yaml").write_text(text.replace("always_overwrite", "append_sha"), encoding="utf-8")
    write_recipe(home, "plain", tmp_path / "plain.svc")
    write_artifact(tmp_path / "plain.svc", model(features=False))
    kid, key = parse_signing_keys(SIGNING_KEYS).active
    versions = Versions(str(home / "shelf/books.svc"), parse_signing_keys(SIGNING_KEYS), Settings())
    trained = []
    for day in (1, 2, 3):
        head = header(best_score=day / 10, rank_ms=0.12345, trained_at=f"2026-01-0{day}T00:00:00+00:00")
        if day == 3:
            head["tuning"] = {"reused_from": {"sha8": trained[0], "searched_at": "2026-01-01T00:00:00+00:00"}}
        write = partial(layout.write, kid=kid, key=key, header=head, payload=encode(model(features=False)))
        trained.append(versions.publish(write, head, move=True, keep=None).sha8)
    versions.rollback(trained[0], hold=True)
    with Server(home) as own, tab_of(browser, own) as tab:
        page = tab.open(key=None)
        tab.heading("books").wait_for()
        books = page.get_by_role("listitem").filter(has=tab.heading("books"))
        books.locator("summary").click()
        rows = books.locator("tbody tr")
        playwright.expect(rows).to_have_count(3)
        assert [row.locator("th code").inner_text() for row in rows.all()] == trained[::-1]
        playwright.expect(rows.nth(2)).to_contain_text("0.10000")
        playwright.expect(rows.nth(2)).to_contain_text("0.123")
        playwright.expect(books).to_contain_text("Refit of")
        playwright.expect(rows.nth(0)).to_contain_text(trained[0])
        playwright.expect(rows.nth(2)).to_contain_text("live, held")
        playwright.expect(books).to_contain_text("svc promote FOLDER/books.yaml VERSION")
        plain = page.get_by_role("listitem").filter(has=tab.heading("plain"))
        plain.locator("summary").click()
        playwright.expect(plain).to_contain_text("output.versioning is always_overwrite")
        listed = own.get("/v1/recipes/books/versions").json()
        assert listed["versions"] == [version.as_fields() for version in versions.history()]
        assert own.get("/v1/recipes/nothing/versions").status_code == 404
    with Server(home, env={"SVC_CONSOLE": "0"}) as own:
        assert own.get("/v1/recipes/books/versions").json()["code"] == "NOT_FOUND"


def test_the_form_follows_the_declared_features(tab: Tab) -> None:
    """Categorical features get a choice, and numerical ones get a number field.

    A value that the model cannot use gets `FEATURE_VALUE_UNUSABLE`. A recipe without features offers neither "A new
    user" nor "A new item".
    """
    page = tab.open()
    page.get_by_label("A new user").check()
    tag = page.get_by_label("tag", exact=True)
    assert tag.locator("option").all_text_contents() == ["not given", "a", "b"]
    tag.select_option("b")
    page.get_by_label("age", exact=True).fill("33.5")
    assert '"user_features":{"tag":"b","age":33.5}' in tab.curl()
    assert len(tab.recommend()) == 10
    page.get_by_label("A new item").check()
    page.get_by_label("age", exact=True).fill("100000")
    page.get_by_role("button", name="Recommend").click()
    playwright.expect(page.locator(".failure")).to_contain_text("FEATURE_VALUE_UNUSABLE")
    page.get_by_label("Recipe", exact=True).select_option("plain")
    assert page.get_by_role("radio").count() == 3


def test_a_page_has_a_shelf_for_each_row(tab: Tab) -> None:
    """No item stands twice. A row of labels becomes a shelf for each label."""
    page = tab.open()
    page.get_by_label("A page", exact=True).check()
    page.get_by_label("User id").fill("u3")
    page.get_by_role("button", name="Recommend").click()
    playwright.expect(page.locator(".shelf")).not_to_have_count(0)
    ids = page.locator(".shelf li .muted").all_inner_texts()
    assert len(ids) == len({*ids}) > 20
    assert "For you" in page.locator(".shelf h4").all_inner_texts()


def test_markup_in_titles_is_shown_as_text(tab: Tab) -> None:
    """HTML in a title is shown as text in the search and in the answer, and is never executed."""
    page = tab.open()
    page.get_by_label("Some items").check()
    page.get_by_role("combobox", name="Items to start from").fill("onerror=")
    playwright.expect(page.locator("li[role=option]").first).to_contain_text(EVIL)
    page.get_by_label("A user", exact=True).check()
    assert EVIL in tab.recommend("u3", 60)
    assert page.locator("#answer img, #answer script").count() == 0
    assert page.evaluate("window.hacked") is None


def test_the_browser_blocks_and_reports_injected_scripts_and_requests(tab: Tab) -> None:
    """The content security policy blocks injected scripts, images and requests.

    `Tab` records each block, so all tests of this file would notice an injection.
    """
    page = tab.open(key=None)
    page.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.hacked = true";
      document.body.append(script);
      const image = document.createElement("img");
      image.src = "https://elsewhere.example/?" + "x";
      document.body.append(image);
      return fetch("https://elsewhere.example/").catch(() => null);
    }""")
    assert page.evaluate("window.hacked") is None
    for directive in ("script-src", "img-src", "connect-src"):
        assert any(directive in complaint for complaint in tab.complaints), tab.complaints
    assert any(complaint.startswith("request to https://elsewhere.example/") for complaint in tab.complaints)
    tab.complaints.clear()


def test_live_figures_follow_the_metrics(tab: Tab, server: Server) -> None:
    """Requests of other clients appear in the live figures with error rates and latencies, without a reload."""
    page = tab.open()
    page.locator("#tiles").get_by_text("Requests a second").wait_for()
    for user in ("u1", "u2", "nobody"):
        server.client.post("/v1/recipes/plain:recommend", json={"user_id": user}, headers={"X-API-Key": KEY})
    row = page.locator("#traffic tr").filter(has_text="plain")
    playwright.expect(row).to_contain_text("33.3%")
    playwright.expect(row).to_contain_text(re.compile(r"\d (µ|m)?s"))


def test_the_share_of_fallbacks_is_shown_once_there_are_any(browser: Any, recipes: Path) -> None:
    """The share of fallbacks appears after the first single request that used one.

    It is a share of the single requests in the same time. Elements of batches do not count.
    """
    with Server(recipes) as own, tab_of(browser, own) as tab:
        page = tab.open(key=None)
        page.locator("#tiles").get_by_text("Requests a second").wait_for()
        ask = "/v1/recipes/plain:recommend"
        own.client.post(ask, json={"user_id": "u1"})
        row = page.locator("#traffic tr").filter(has_text="plain")
        playwright.expect(row.locator("td")).to_have_count(4)
        batch = {"requests": [{"user_id": f"nobody{n}", "fallback": "popular"} for n in range(20)]}
        own.client.post("/v1/recipes/plain:batch-recommend", json=batch)
        for user in ("u1", "u2", "nobody"):
            assert own.client.post(ask, json={"user_id": user, "fallback": "popular"}).status_code == 200
        playwright.expect(page.locator("#traffic thead")).to_contain_text("Fallback")
        shown = row.locator("td").nth(4)
        playwright.expect(shown).to_have_text(re.compile(r"^(20|25|33\.3|50)%$"))


def test_percentiles_are_interpolated_and_rates_survive_a_restart(tab: Tab) -> None:
    """Percentiles are interpolated linearly within a bucket.

    A percentile above the last finite bound is that bound, and there is none without observations. Counters that fell,
    as after a restart of the server, are counted from zero.
    """
    page = tab.open(key=None)
    found = page.evaluate("""async () => {
      const { between, quantile, read, summary } = await import("/console/prometheus.js");
      const name = "svc_v1_requests_total", le = "svc_v1_request_latency_seconds_bucket";
      const text = (ok, bad, ...at) => `${name}{recipe="a",status="ok"} ${ok}\\n`
        + ["error", "overloaded", "unavailable", "rate_limited"]
          .map((status) => `${name}{recipe="a",status="${status}"} ${bad}\\n`).join("")
        + ["0.1", "0.2", "+Inf"].map((bound, place) => `${le}{le="${bound}",recipe="a"} ${at[place]}\\n`).join("");
      const first = read(text(10, 1, 5, 11, 11), 0);
      const grown = between(first, read(text(18, 3, 10, 21, 21), 4000));
      const anew = between(first, read(text(4, 0, 4, 4, 4), 4000));
      return [grown.seconds, summary(grown.recipes.values()), summary(anew.recipes.values()).requests,
        quantile([[1, 0], [Infinity, 5]], 0.5), quantile([[1, 0], [Infinity, 0]], 0.5)];
    }""")
    seconds, summary, anew, beyond, nothing = found
    assert (seconds, anew, beyond, nothing) == (4, 4, 1, None)
    assert (summary["requests"], summary["server"], summary["client"]) == (16, 6, 2)
    assert (summary["p50"], summary["p99"]) == pytest.approx((0.1, 0.198))


def test_the_console_works_without_keys_and_metrics(browser: Any, recipes: Path) -> None:
    """Without API keys the console asks for none, and its curl commands send none.

    Without metrics it names the setting that enables live figures.
    """
    with Server(recipes, env={"SVC_METRICS_ENABLED": "0"}) as server, tab_of(browser, server) as tab:
        page = tab.open(key=None)
        tab.heading("movies").wait_for()
        playwright.expect(page.locator("#figures-off")).to_contain_text("SVC_METRICS_ENABLED=1")
        assert len(tab.recommend("u1")) == 10
        assert "X-API-Key" not in tab.curl()


def test_the_pages_work_under_a_path_prefix_of_a_proxy(tab: Tab) -> None:
    """Console and API reference work behind a proxy that strips a path prefix."""
    page = tab.page
    page.route(
        "**/recommend/**", lambda route: route.fulfill(response=route.fetch(url=without_path(route.request.url)))
    )
    page.goto(f"{tab.url}/recommend/")
    page.get_by_label("API key").fill(KEY)
    page.keyboard.press("Enter")
    tab.heading("movies").wait_for()
    assert len(tab.recommend("u3")) == 10
    assert f"{tab.url}/recommend/v1/recipes/movies:recommend" in tab.curl()
    page.get_by_role("link", name="API reference").click()
    snippet = try_out(page, "live")
    assert f"{tab.url}/recommend/v1/health/live" in snippet
    playwright.expect(page.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")


def test_the_opening_user_never_enters_a_field_that_somebody_is_in(tab: Tab) -> None:
    """A random user that arrives while somebody is in its field fills in nothing: the id would join what is typed."""
    page = tab.page

    def focus_first(route: Any) -> None:
        page.get_by_label("User id").focus()
        route.continue_()

    page.route("**/v1/recipes/movies/somebody", focus_first)
    with page.expect_response("**/somebody"):
        tab.open()
    page.keyboard.type("u3")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#answer-title")).to_have_text("For user u3, by movies")


def without_path(url: str) -> str:
    return url.replace("/recommend/", "/", 1)


def test_every_function_works_by_keyboard(tab: Tab) -> None:
    """Tab, arrow keys, Enter and Escape suffice from the key to an answer, and the focus is always visible."""
    page = tab.open(key=None)
    page.get_by_label("API key").wait_for()
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    tab.heading("movies").wait_for()
    playwright.expect(page.get_by_label("Recipe", exact=True)).to_be_focused()
    go_to(page, "[name=mode]")
    page.keyboard.press("ArrowRight")
    go_to(page, "[role=combobox]")
    page.keyboard.type("story number 1")
    page.locator("li[role=option]").nth(3).wait_for()
    page.keyboard.press("ArrowDown")
    active = page.locator("li[aria-selected=true]")
    assert active.get_attribute("id") == page.locator("[role=combobox]").get_attribute("aria-activedescendant")
    page.keyboard.press("Enter")
    assert page.locator(".chip").count() == 1
    page.keyboard.type("story")
    page.locator("li[role=option]").first.wait_for()
    page.keyboard.press("Escape")
    assert not page.get_by_role("listbox").is_visible()
    go_to(page, "#attempt > button")
    page.keyboard.press("Enter")
    page.locator(".ranking li").nth(9).wait_for()
    playwright.expect(page.locator("#answer-said")).to_have_text("10 items recommended")


def test_a_phone_opens_at_the_form_and_jumps_to_the_answer(browser: Any, server: Server) -> None:
    """The first answer leaves the page at the form, which has the focus. Links lead to the answer and back.

    An answer that the user asked for scrolls into view.
    """
    with tab_of(browser, server, viewport=SIZES["narrow"]) as tab:
        page = tab.open()
        page.locator(".ranking li").first.wait_for()
        recipe, title = page.get_by_label("Recipe", exact=True), page.locator("#answer-title")
        playwright.expect(recipe).to_be_focused()
        playwright.expect(recipe).to_be_in_viewport()
        page.get_by_role("link", name="To the answer").click()
        playwright.expect(title).to_be_in_viewport()
        page.get_by_role("link", name="To the form").click()
        playwright.expect(recipe).to_be_in_viewport()
        playwright.expect(title).not_to_be_in_viewport()
        tab.recommend("u3")
        playwright.expect(title).to_be_in_viewport()


def test_an_answer_has_labels_folded_reasons_and_then_the_history(tab: Tab) -> None:
    """Labels of features stand apart. Of several reasons the first is shown, and the others unfold.

    A new item says that its share placed it, unless it is pinned.
    """
    page = tab.page
    genres = {"name": "genres", "kind": "multi_label", "n_values": 2, "values": ["Crime", "Poetry"]}

    def with_genres(route: Any) -> None:
        body = route.fetch().json()
        body["feature_columns"]["item"].append(genres)
        route.fulfill(json=body)

    def with_notes(route: Any) -> None:
        body = route.fetch().json()
        reasons = [{"item_id": f"i{item}", "title": f"Story number {item}", "share": 0.4} for item in (7, 8)]
        body["items"][0] |= {"genres": "Crime|Poetry", "because": reasons, "reason": ["new"]}
        body["items"][1] |= {"reason": ["new", "pinned"]}
        route.fulfill(json=body)

    page.route("**/v1/recipes/movies", with_genres)
    page.route("**/v1/recipes/movies:recommend", with_notes)
    tab.open()
    tab.recommend("u3")
    first = page.locator(".ranking > li").first
    assert first.locator(".labels li").all_text_contents() == ["Crime", "Poetry"]
    playwright.expect(first).to_contain_text("new, placed by its share")
    playwright.expect(page.locator(".ranking > li").nth(1).get_by_text("new, pinned", exact=True)).to_be_visible()
    other = first.get_by_text("Story number 8 (40 %)")
    playwright.expect(other).not_to_be_visible()
    first.get_by_text("because you chose Story number 7 (40 %)").click()
    playwright.expect(other).to_be_visible()
    tops = [page.locator(place).bounding_box()["y"] for place in (".ranking", ".history", ".raw")]
    assert tops == sorted(tops)


def test_the_arm_of_an_experiment_is_shown_and_offered_only_by_its_recipe(browser: Any, tmp_path: Path) -> None:
    """The answer names its arm. The list of recipes has the arm's health, but no button to try it."""
    home = tmp_path / "recipes"
    home.mkdir()
    arms = [{"name": "old", "weight": 0}, {"name": "next", "weight": 1, "path": str(tmp_path / "next.svc")}]
    split = {"name": "ranking-2", "salt": "long-and-secret-salt", "arms": arms}
    write_recipe(home, "plain", tmp_path / "plain.svc", serving={"experiment": split})
    for name in ("plain", "next"):
        write_artifact(tmp_path / f"{name}.svc", model(features=False))
    with Server(home) as own, tab_of(browser, own) as tab:
        page = tab.open(key=None)
        tab.heading("plain@next").wait_for()
        assert page.get_by_role("button", name=re.compile("^Try ")).all_text_contents() == ["Try plain"]
        assert page.get_by_label("Recipe", exact=True).locator("option").all_text_contents() == ["plain"]
        tab.recommend("u3")
        playwright.expect(page.locator("#answer")).to_contain_text("arm next of the experiment ranking-2")


def go_to(page: Any, selector: str) -> None:
    """Press Tab until the element has the focus, and fail if any stop on the way has no visible focus."""
    for _ in range(40):
        page.keyboard.press("Tab")
        focus = """wanted => {
          const at = document.activeElement, shown = at.name === "mode" ? at.nextElementSibling : at;
          const visible = at === document.body || getComputedStyle(shown).outlineStyle !== "none";
          return [at.matches(wanted), visible, at.outerHTML];
        }"""
        reached, visible, html = page.evaluate(focus, selector)
        assert visible, html
        if reached:
            return
    pytest.fail(f"{selector} is not reached by Tab")


@pytest.mark.parametrize(("size", "scheme"), [("narrow", "dark"), ("wide", "light")])
def test_every_view_fits_and_is_accessible(browser: Any, server: Server, size: str, scheme: str) -> None:
    """No view scrolls sideways, and axe finds no violation, on a narrow dark and on a wide light screen.

    For the API reference, axe checks only the contrast of colors.
    """
    from axe_playwright_python.sync_playwright import Axe

    tab = Tab(browser, server.url, viewport=SIZES[size], color_scheme=scheme)

    def check(view: str, **options: Any) -> None:
        wide = tab.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= SIZES[size]["width"], view
        found = [
            (fault["id"], [node["html"] for node in fault["nodes"]])
            for fault in Axe().run(tab.page, options={"resultTypes": ["violations"], **options}).response["violations"]
        ]
        assert found == [], view

    page = tab.open(key=None)
    page.get_by_label("API key").wait_for()
    check("key")
    tab.open()
    tab.recommend("u3")
    page.locator("#tiles").get_by_text("since start").first.wait_for()
    check("answer")
    page.get_by_label("A new user").check()
    check("features")
    page.get_by_label("Some items").check()
    page.get_by_role("combobox", name="Items to start from").fill("story")
    page.locator("li[role=option]").first.click()
    page.get_by_role("combobox", name="Items to start from").fill("number")
    page.locator("li[role=option]").nth(2).wait_for()
    check("search")
    page.goto(f"{server.url}/v1/docs")
    page.locator(".opblock").first.wait_for()
    for operation in ("list_recipes", "recommend"):
        page.locator(f".opblock[id$='-{operation}'] .opblock-summary-control").first.click()
    page.locator(".opblock.is-open .responses-wrapper").nth(1).wait_for()
    page.get_by_role("tab", name="Schema").first.click()
    check("reference", runOnly=["color-contrast"])
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(background.removeprefix("rgb(").partition(",")[0]) < 128) == (scheme == "dark")
    tab.context.close()
    assert tab.complaints == []


def try_out(page: Any, operation: str) -> str:
    """Open an operation of the reference, send its request, and return the command shown beside the answer."""
    block = page.locator(f".opblock[id$='-{operation}']")
    block.locator(".opblock-summary-control").first.click()
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Execute").click()
    block.locator(".live-responses-table").wait_for()
    return str(block.locator(".request-snippets pre").first.inner_text())


def test_the_reference_shows_the_whole_document(tab: Tab, server: Server) -> None:
    """The API reference shows each operation of the OpenAPI document under its heading, also without a key."""
    document = server.get("/v1/openapi.json").json()
    page = tab.page
    page.goto(f"{server.url}/v1/docs")
    page.locator(".opblock").first.wait_for()
    operations = [item[method] for item in document["paths"].values() for method in item.keys() & {"get", "post"}]
    shown = page.locator(".opblock").evaluate_all("nodes => nodes.map(node => node.id)")
    assert {one.rpartition("-")[2] for one in shown} == {operation["operationId"] for operation in operations}
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    playwright.expect(page.locator("#key-said")).to_contain_text("open the console in this tab")
    for heading in ("Recommendations", "Recipes and their items", "Health and metrics"):
        assert page.get_by_role("link", name=heading, exact=True).count() == 1


def test_the_reference_sends_requests_with_the_key_of_the_console(tab: Tab) -> None:
    """The API reference sends requests with the key of the console to a recipe that is served.

    Its curl, Python and JavaScript snippets name the variable of the key and never contain the key.
    """
    page = tab.open()
    page.get_by_role("link", name="API reference").click()
    playwright.expect(page.locator("#key-said")).to_contain_text("Recipes with a model: movies, plain.")
    block = page.locator(".opblock[id$='-recommend']").first
    block.locator(".opblock-summary-control").first.click()
    playwright.expect(block).to_contain_text("include_seen")
    block.get_by_role("button", name="Try it out").click()
    assert block.locator("select option").all_text_contents()[:2] == ["movies", "plain"]
    block.locator("textarea").fill('{"user_id": "u3", "limit": 2}')
    block.get_by_role("button", name="Execute").click()
    playwright.expect(block.locator(".live-responses-table")).to_contain_text("model_version")
    snippets = block.locator(".request-snippets")
    for language, part in (
        ("curl", "$SVC_CLIENT_KEY"),
        ("Python", 'os.environ["SVC_CLIENT_KEY"]'),
        ("JavaScript", "await fetch("),
    ):
        snippets.get_by_text(language, exact=True).click()
        playwright.expect(snippets).to_contain_text(part)
        assert KEY not in snippets.inner_text()
