"""`svc report`: write the HTML report of a training from its artifact, without training again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from svc import events, logs
from svc.cli.common import Confirmed, DevAllowUnsigned, check_unsigned, verifying_keys
from svc.env_file import environment
from svc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svc.artifact.keys import SigningKeys

_MOST_VERSIONS = 6
"""Number of newest files to search for the previous version. It is low because each file is read whole to verify it."""
EPILOG = """
[bold]Examples[/bold]
  svc report artifacts/movies.svc
  svc report s3://models/movies.svc --output movies.html
  svc report artifacts/movies.svc --earlier artifacts/movies.1a2b3c4d.svc

[bold]Exit codes[/bold]
  0 written   5 unreadable or not trusted   8 no signing keys or matplotlib
"""


def command(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="Path or s3://, gs://, az://, https:// URI.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    earlier: Annotated[
        str | None,
        typer.Option(
            "--earlier",
            help="An earlier artifact to compare with.",
            show_default="the version trained before, if it is in the same local folder",
        ),
    ] = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
    confirmed: Confirmed = False,
) -> None:
    """Write the HTML report of an artifact's training, without training again."""
    from svc.artifact.store import read_verified
    from svc.training.report.page import check_report, write_report

    settings = Settings.from_env(environment(Path()))
    unsigned = check_unsigned(settings, wanted=dev_allow_unsigned, confirmed=confirmed)
    logs.configure(settings)
    keys = verifying_keys(settings, unsigned=unsigned, artifact=artifact)
    check_report(output)
    blob, parsed = read_verified(artifact, keys, settings)
    _check(parsed.header)
    if earlier is not None:
        before: Mapping[str, Any] | None = read_verified(earlier, keys, settings)[1].header
    else:
        before = _trained_before(blob.resolved, parsed.header, keys, settings)
    write_report(output, parsed.header, _counts(parsed.payload), before)
    logs.emit(events.REPORT_WRITTEN, path=str(output))


def _check(header: Mapping[str, Any]) -> None:
    """Raise HeaderInvalid for a header without the facts of a training."""
    from svc.errors import HeaderInvalid

    missing = [name for name in ("metric", "cutoff", "tuning", "evaluation", "data_stats") if name not in header]
    if missing:
        raise HeaderInvalid(f"header: {', '.join(missing)} missing, so there is nothing to report; retrain the recipe")


def _counts(payload: memoryview) -> Any:
    from svc.model.load_model import decode_model
    from svc.training.report.page import Counts

    model = decode_model(payload)
    return Counts.of(model.history, model.n_items)


def _trained_before(
    resolved: str, header: Mapping[str, Any], keys: SigningKeys, settings: Settings
) -> Mapping[str, Any] | None:
    """Return the header of the version that was trained last before the local version at `resolved`.

    `header` is the header of that version. Only the newest _MOST_VERSIONS files of the same name in its folder are
    read. Returns None if none of these files is verified, of the same recipe and not trained later. Returns None too if
    `resolved` is remote or its name is not that of a version.
    """
    from svc.artifact.store import local_path, read_verified, scheme_of
    from svc.errors import SvcError

    if scheme_of(resolved) not in {"", "file"}:
        return None
    own = local_path(resolved)
    stem, _, sha8 = own.stem.rpartition(".")
    if len(sha8) != 8:
        return None
    try:
        versions = own.parent.glob(f"{stem}.????????{own.suffix}")
        newest_first = sorted(versions, key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:  # the folder cannot be read, or a training has just removed an old version
        return None
    headers = []
    for path in newest_first[:_MOST_VERSIONS]:
        try:
            other = read_verified(str(path), keys, settings)[1].header
        except SvcError:
            continue
        if (
            path != own
            and other["recipe_name"] == header["recipe_name"]
            and other["trained_at"] <= header["trained_at"]
        ):
            headers.append(other)
    return max(headers, key=lambda other: str(other["trained_at"]), default=None)
