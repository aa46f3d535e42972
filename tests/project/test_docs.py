"""The documentation agrees with the code: reference pages, links, commands and examples."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from svc import __version__, errors
from svc.cli.demo import FILES
from svc.cli.schema import json_schema
from svc.metrics import METRICS
from svc.recipe.algorithms import ALGORITHMS, DEFAULT_ALGORITHMS
from svc.recipe.load import load_recipe
from svc.settings import Settings
from tests.pages import RECIPE, ROOT, SMALLER, Shell, blocks, cron_lines, make_shop, script_of

DOCS = ROOT / "docs"
DEPLOY = DOCS / "deploy"
SITE: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
BESIDE_THE_CODE = [DOCS / name for name in SITE["exclude_docs"].split()]
PAGES = sorted({*DOCS.rglob("*.md")} - {*BESIDE_THE_CODE})
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(#[^)]*)?\)")
DOCUMENTED = [*PAGES, *BESIDE_THE_CODE, *(ROOT / folder / "README.md" for folder in (".", "recipes", "benchmarks"))]


@functools.cache
def load_generator(name: str = "reference_pages") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["environment.md", "events.md", "cli.md", "python.md"])
def test_reference_pages_match_the_code(name: str) -> None:
    """`python docs/reference_pages.py` writes stale pages again."""
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == load_generator().PAGES[name]()


@pytest.mark.parametrize("page", [*DOCUMENTED, ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_links_point_to_existing_files(page: Path) -> None:
    """Links of the site's pages lead to other files of the site."""
    targets = [page.parent / match[1] for match in LINK.finditer(page.read_text(encoding="utf-8"))]
    assert [str(target) for target in targets if not target.exists()] == []
    if DOCS in page.parents:
        assert [str(target) for target in targets if DOCS not in target.resolve().parents] == []


def rows_of(page: str, heading: str) -> dict[str, str]:
    """Return the second column of the table under a heading, by each name in the first column."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (`[^|]*?) \| (.*?) \|", section.replace("\\|", "¦"), re.MULTILINE)
    return {name: rest for names, rest in found for name in re.findall(r"`([\w.]+)`", names)}


def shown_default(value: object) -> str:
    """Return a default value as the page writes it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return (
        f"`{json.dumps(value)}`"
        if value == ""
        else f"`{value}`".replace("|", "¦")
        if isinstance(value, str)
        else str(value)
    )


def others() -> str:
    """Return the recommenders that only run if a recipe lists them, as a page names them."""
    *names, last = [name.removesuffix("Recommender") for name in ALGORITHMS if name not in DEFAULT_ALGORITHMS]
    return f"{', '.join(names)} and {last}"


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("schema", ["InteractionSchema"]),
        ("cleansing", ["Cleansing"]),
        ("features", ["FeatureColumn"]),
        ("item_metadata", ["ItemMetadata"]),
        ("training", ["Training", "TimeDecay", "Split"]),
        ("output", ["Output"]),
        ("serving", ["Serving", "Availability", "NewItems"]),
        ("experiment", ["Experiment", "Arm"]),
    ],
)
def test_the_recipe_page_has_every_field_with_its_default(heading: str, names: list[str]) -> None:
    """Each table has exactly the fields of the recipe's model."""
    fields = {}
    for name in names:
        for field, facts in json_schema()["$defs"][name]["properties"].items():
            inside = {"Split": "split.", "TimeDecay": "time_decay."}.get(name, "")
            fields[f"{inside}{field}"] = facts.get("default", "required")
    for block in ("split", "time_decay"):
        fields.pop(block, None)
    fields.pop("encoding", None)
    shown = rows_of((DOCS / "reference" / "recipe.md").read_text(), heading)
    assert shown.pop("encoding", "required") == "required"
    assert shown.keys() == fields.keys()
    wrong = {f: shown[f] for f, value in fields.items() if value != "required" and shown[f] != shown_default(value)}
    by_data = {
        "algorithms": f"all but {others()}",
        "split.scheme": "`time_user` with `schema.time_column`, else `random`",
    }
    assert wrong == (by_data if heading == "training" else {})


def test_the_api_page_has_every_code_with_its_status() -> None:
    """The page lists exactly the error codes of HTTP answers."""
    page = (DOCS / "reference" / "api.md").read_text()
    shown = {(int(status), code) for status, code in re.findall(r"^\| (\d{3}) \| `([A-Z_]+)`", page, re.MULTILINE)}
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.ApiError)]
    assert shown == {(c.http_status, c.code) for c in classes if c is not errors.ApiError}


def test_the_training_page_has_a_remedy_for_every_failure() -> None:
    """Each code of a TrainingError has a line under the heading Failures."""
    page = (DOCS / "reference" / "training.md").read_text()
    shown = set(re.findall(r"^- `(\w+)`", page.partition("\n## Failures\n")[2].partition("\n## ")[0], re.MULTILINE))
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.TrainingError)]
    assert {c.code for c in classes} - shown == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_code_fits_the_screen(page: Path) -> None:
    """Lines of code have at most 86 characters, which fit 1280 pixels. Lines of cron are exempt."""
    shown = [block for block in blocks(page) if block.language != "cron"]
    assert [line for block in shown for line in block.text.splitlines() if len(line) > 86] == []


def test_every_dependency_has_its_reason() -> None:
    """docs/dependencies.md names every direct dependency and every extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (DOCS / "dependencies.md").read_text()
    names = [re.split(r"[\[<>=]", requirement)[0] for requirement in project["dependencies"]]
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", page)] == []
    assert [extra for extra in project["optional-dependencies"] if extra != "all" and f"`{extra}`" not in page] == []


def metrics_in(text: str) -> set[str]:
    found = set(re.findall(r"\bsvc_[a-z0-9_]+\b", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


@pytest.mark.parametrize("file", ["prometheus/rules.yml", "grafana/svc.json"])
def test_alerts_and_dashboard_use_metrics_that_exist(file: str) -> None:
    """An alert on a renamed metric would never fire."""
    assert metrics_in((DEPLOY / file).read_text()) - METRICS.keys() <= {"svc_a", "svc_b"}


@pytest.mark.system
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_alert_rules_hold_their_own_tests() -> None:
    """promtool accepts the rules, and their tests pass."""
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml", "rules_days_test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_structured_files_parse() -> None:
    """All YAML and JSON files under docs/deploy can be parsed, except the templates of the chart."""
    for path in DEPLOY.rglob("*.y*ml"):
        if path.parent.name == "templates":
            continue
        assert list(yaml.safe_load_all(path.read_text())), path
    for path in DEPLOY.rglob("*.json"):
        assert json.loads(path.read_text()), path


RUNNING = [page for page in PAGES if any(block.runs or block.language == "cron" for block in blocks(page))]
RECIPE_KEYS = {"name", "source", "schema", "cleansing", "features", "item_metadata", "training", "output", "promotion"}
LANGUAGES = {"bash", "cron", "csv", "json", "python", "text", "toml", "yaml"}
COMMAND = re.compile(r"^(\$ )?(svc|curl|python3?|pip|nox|kubectl|helm|docker|systemctl) ", re.MULTILINE)


@pytest.mark.integration
def test_the_training_page_has_every_field_of_a_header(tmp_path: Path) -> None:
    """The page names each field that `svc inspect` prints, other than facts of the file itself."""
    make_shop(tmp_path)
    command = "svc train recipes/books.yaml --quiet >&2\nsvc inspect artifacts/books.svc --json"
    shown = json.loads(Shell(tmp_path).run(command).stdout)
    page = (DOCS / "reference" / "training.md").read_text()
    fields = [*shown, *shown["tuning"], *shown["data_stats"]]
    about_the_file = {"artifact", "model_version", "artifact_bytes", "payload_bytes", "format_version"}
    assert [field for field in fields if f"`{field}`" not in page and field not in about_the_file] == []


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", RUNNING, ids=lambda p: p.name)
def test_the_blocks_of_a_page_run_as_a_reader_runs_them(page: Path, tmp_path: Path) -> None:
    """All blocks of a page run in order, in one shell that starts in a copy of the project without a trained model.

    The shell stops at the first failure and at the first answer with an error. Training data are cut for speed.
    """
    script = re.sub(
        r"^svc demo .*--folder (\S+)$",
        lambda demo: f"{demo[0]}\n(cd {demo[1]}; {SMALLER})",
        script_of(page),
        flags=re.MULTILINE,
    )
    script = script.replace("head -n 80000", "head -n 10000")
    shell = Shell(tmp_path)
    shell.make_host()
    curl = 'curl() { command curl --fail-with-body "$@"; }\n'
    done = shell.run(curl + script, SVC_CLIENT_KEY="0" * 43, SVC_WATCH_INTERVAL="0.5", MPLBACKEND="agg")
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda p: p.name)
def test_paths_into_the_project_are_right_where_the_reader_is(page: Path) -> None:
    """After `cd shop` a block names the project's files and the project itself from there."""
    folder, missing = ROOT, []
    for block in blocks(page):
        for line in block.text.splitlines() if block.language == "bash" else ():
            if entered := re.match(r"(?:\. .*; )?cd (\S+)$", line):
                folder /= entered[1]
            wanted = re.findall(r"(?<![\w/.$-])((?:\.\./)*docs/[\w./{},@*-]+)", line)
            wanted += [f"{path}/pyproject.toml" for path in re.findall(r"pip install '?(\.[./\w-]*)", line)]
            there = [os.path.relpath(folder / re.sub(r"\{.*\}", "*", path), ROOT) for path in wanted]
            missing += [line for path in there if not [*ROOT.glob(path)]]
    assert missing == []


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda p: p.name)
def test_every_code_block_has_a_checked_language(page: Path) -> None:
    """Bash, Python, JSON and TOML blocks parse. Text blocks contain no commands."""
    for block in blocks(page):
        assert block.language in LANGUAGES, block
        if block.language == "bash":
            assert not block.title or block.title.startswith("Needs ") or block.file, block
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        elif block.language == "python":
            compile(block.text, page.name, "exec")
        elif block.language in ("json", "toml"):
            {"json": json.loads, "toml": tomllib.loads}[block.language](block.text)
        elif block.language == "text":
            assert not COMMAND.search(block.text), block


@pytest.mark.parametrize("page", DOCUMENTED, ids=lambda p: p.name)
def test_recipes_shown_are_recipes(page: Path, tmp_path: Path) -> None:
    """A part of a recipe is loaded within a complete one."""
    for block in blocks(page):
        if block.language != "yaml":
            continue
        shown = yaml.safe_load(block.text)
        if not shown.keys() <= RECIPE_KEYS:
            continue
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(yaml.safe_dump({**yaml.safe_load(RECIPE), **shown}))
        load_recipe(recipe, {}, settings=Settings())


FENCED, TARGET = re.compile(r"```.*?```|^\|.*?$", re.DOTALL | re.MULTILINE), re.compile(r"\]\([^)]*\)")
MOST_WORDS = 30


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "tutorial.md"], ids=lambda p: p.name)
def test_first_pages_have_short_sentences(page: Path) -> None:
    """No sentence of README and tutorial has more than 30 words."""
    text = TARGET.sub("]", FENCED.sub("", page.read_text(encoding="utf-8")))
    sentences = [s for part in re.split(r"\n\s*\n|\n- ", text) for s in re.split(r"(?<=[.:;?!])\s+", part)]
    assert [s for s in sentences if len(s.split()) > MOST_WORDS] == []


def linked(nav: list[Any]) -> Iterator[str]:
    """Yield the pages of a navigation, in order."""
    for entry in nav:
        for target in entry.values():
            yield from linked(target) if isinstance(target, list) else [target]


def test_every_page_has_one_place_in_the_navigation() -> None:
    """Each page is in the navigation once, under its own title."""
    nav = SITE["nav"]
    assert sorted(linked(nav)) == sorted(str(page.relative_to(DOCS)) for page in PAGES)
    labels = {
        page: label for part in nav for pages in part.values() for entry in pages for label, page in entry.items()
    }
    titles = {page: (DOCS / page).read_text(encoding="utf-8").partition("\n")[0] for page in labels}
    assert titles == {page: f"# {label}" for page, label in labels.items()}


def test_the_site_has_the_markdown_of_each_page_and_an_index(tmp_path: Path) -> None:
    """Each Markdown file has the path of its page. llms.txt links to all pages."""
    load_generator("markdown_pages").write(tmp_path)
    index = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    targets = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)$", index, re.MULTILINE)
    assert sorted(targets) == sorted(str(page.relative_to(DOCS)) for page in PAGES)
    assert all((tmp_path / target).read_text() == (DOCS / target).read_text() for target in targets)
    assert index.startswith("# svc\n\n> ")


def test_pictures_of_pages_exist() -> None:
    """The build of the site does not report a missing picture."""
    for page in PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).is_file(), (page, target)


def test_schedules_are_valid_for_cron() -> None:
    """Each line has five fields, and a command that `sh` can parse and that contains no `%`."""
    found = [line for page in PAGES for b in blocks(page) if b.language == "cron" for line in cron_lines(b)]
    assert found
    for when, command in found:
        assert re.fullmatch(r"(?:(?:\*|\d+(?:-\d+)?(?:,\d+)*)(?:/\d+)?(?: |$)){5}", when), when
        subprocess.run(["sh", "-n", "-c", command], check=True)
        assert "%" not in command  # cron takes it for a line end


def test_a_folder_that_cron_writes_into_is_made_on_its_page() -> None:
    """The shell runs no command if it cannot open the log."""
    page = DOCS / "howto" / "schedule.md"
    shown = blocks(page)
    logs = {log for b in shown if b.language == "cron" or b.file for log in re.findall(r">>(\S+)/", b.text)}
    made = [line for b in shown if b.language == "bash" for line in b.text.splitlines() if "install -d" in line]
    assert logs and all(any(line.endswith(f" {log}") for line in made) for log in logs)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_the_commands_of_the_readme_give_recommendations(tmp_path: Path) -> None:
    """The commands run as one script, the server's answer has items, and so has the program's table at the end."""
    make_shop(tmp_path / "svc-demo")
    done = Shell(tmp_path).run(script_of(ROOT / "README.md").replace("n_trials: 40", "n_trials: 4"))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    *_, answer, columns, _, _, last = done.stdout.splitlines()
    assert json.loads(answer)["items"]
    assert (columns.split(), last.split()[0]) == (["item_id", "score"], "2")


def test_the_data_and_the_recipe_of_the_readme_fit_the_files_of_the_demo() -> None:
    """A reader can replace the data or the recipe of the demo by that of the README."""
    shown = {block.language: block.text for block in blocks(ROOT / "README.md")}
    demo = yaml.safe_load((FILES / "recipes" / "books.yaml").read_text(encoding="utf-8"))
    assert (FILES / "data" / "purchases.csv").read_text(encoding="utf-8").startswith(shown["csv"])
    mine = yaml.safe_load(shown["yaml"])
    assert {key: mine[key] for key in ("name", "source", "schema", "output")} == {
        key: demo[key] for key in ("name", "source", "schema", "output")
    }


@pytest.mark.integration
def test_the_readme_installs_into_a_fresh_environment(tmp_path: Path) -> None:
    """The command installs svc, except `svc demo` at its end. CI runs the README's command for tests."""
    commands = [block.text.strip() for block in blocks(ROOT / "README.md") if block.language == "bash"]
    (installed,) = [text for text in commands if "pip install ." in text]
    (tested,) = [text for text in commands if text.endswith("python -m nox")]
    install, _, demo = installed.rpartition(" && ")
    assert demo == "svc demo"
    assert tested in (ROOT / ".ci" / "run").read_text().replace(" </dev/null", "")
    shell = Shell(tmp_path)
    for name in ("pyproject.toml", "README.md", "LICENSE", "svc"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = shell.run(f"{install}\ncd /\n{tmp_path}/.venv/bin/svc --version", PYTHONPATH="")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"svc {__version__}"
