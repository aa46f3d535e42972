"""`svc report`: write the HTML report of a training from its artifact, without training again."""

from __future__ import annotations

from contextlib import suppress
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
    # Before the artifact is read, which may take minutes from a store.
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

    `header` is the header of that version. Returns None if no such version is verified, if the log of versions is not
    to be trusted, and if `resolved` is remote or its name is not that of a version.
    """
    from svc.artifact.store import SHA8, read_verified, scheme_of
    from svc.artifact.versions import Versions
    from svc.errors import SvcError

    stem, _, sha8 = resolved.removesuffix(".svc").rpartition(".")
    if scheme_of(resolved) not in {"", "file"} or len(sha8) != SHA8:
        return None
    with suppress(SvcError):
        for version in Versions(f"{stem}.svc", keys, settings, recipe=header["recipe_name"]).history():
            # By the time of training, because the log may have been moved by rollbacks.
            if version.sha8 != sha8 and version.trained_at is not None and version.trained_at <= header["trained_at"]:
                # A version that is removed or damaged is passed over for the one before it.
                with suppress(SvcError):
                    return read_verified(f"{stem}.{version.sha8}.svc", keys, settings)[1].header
    return None
