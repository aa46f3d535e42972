"""`svc inspect`: verify an artifact and print a summary of its header, or all of it. The payload is never decoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from svc import logs
from svc.cli.common import Confirmed, DevAllowUnsigned, check_unsigned, verifying_keys
from svc.env_file import environment
from svc.logs import printable
from svc.recipe.algorithms import short_name
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.artifact.keys import SigningKeys

EPILOG = """
[bold]Examples[/bold]
  svc inspect artifacts/movies.svc
  svc inspect artifacts/movies.svc --all
  svc inspect s3://models/movies.svc --json | jq .best_params
  svc inspect artifacts/movies.svc --provenance > movies.intoto.json

[bold]Exit codes[/bold]
  0 verified   5 unreadable, corrupt or not trusted   8 no signing keys
"""


def command(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="Path or s3://, gs://, az://, https:// URI.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print every field, one per line.")] = False,
    provenance: Annotated[
        bool,
        typer.Option("--provenance", help="Print an in-toto statement of the training's inputs and software versions."),
    ] = False,
    dev_allow_unsigned: DevAllowUnsigned = False,
    confirmed: Confirmed = False,
) -> None:
    """Verify an artifact's size and signature and print its header. Safe on corrupt and hostile files."""
    settings = Settings.from_env(environment(Path()))
    unsigned = check_unsigned(settings, wanted=dev_allow_unsigned, confirmed=confirmed, runs_payload=False)
    logs.configure(settings)
    header = _read(artifact, verifying_keys(settings, unsigned=unsigned, artifact=artifact), settings)
    if provenance:
        header, as_json = _provenance(header), True
    if as_json:
        typer.echo(json.dumps(header, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(_lines(header if everything else _summary(header))))


def _provenance(header: dict[str, Any]) -> dict[str, Any]:
    from svc.artifact.provenance import statement

    sha256 = str(header["model_version"]).removeprefix("sha256:")
    return statement(header, name=str(header["artifact"]).rpartition("/")[2], sha256=sha256)


def _read(artifact: str, keys: SigningKeys, settings: Settings) -> dict[str, Any]:
    """Return the header of a verified artifact, together with the address, digest, sizes and kid of its file."""
    from svc.artifact.store import read_verified

    blob, parsed = read_verified(artifact, keys, settings)
    of_the_file = {
        "artifact": blob.resolved,
        "model_version": f"sha256:{blob.sha256}",
        "kid": parsed.kid,
        "artifact_bytes": len(blob.view),
        "payload_bytes": len(parsed.payload),
    }
    # Listed twice: first so that they are printed first, last so that fields of the header cannot override them.
    return {**of_the_file, **parsed.header, **of_the_file}


def _columns(side: dict[str, Any]) -> str:
    """Return the feature columns of one side, and the number of words that the model keeps of each text column.

    `side` is `features.user` or `features.item` of the header.
    """
    texts = _mappings(side.get("texts"))
    words = [f"{_number(text.get('words'))} words of {_text(text.get('column'))}" for text in texts]
    return "; ".join([_text(side.get("columns")), *words])


def _summary(header: dict[str, Any]) -> dict[str, str]:
    """Return the most important fields of the header, each as one line.

    Another program may have written the header, so any field may be missing or have another type.
    """
    tuning, evaluation, stats = (_mapping(header.get(name)) for name in ("tuning", "evaluation", "data_stats"))
    best = _mapping(tuning.get("best_per_algorithm"))
    features, promotion = (_mapping(header.get(name)) for name in ("features", "promotion"))
    sides = [side for side in ("user", "item") if side in features]
    counts = (f"{_number(stats.get(f'n_{name}'))} {name}" for name in ("rows", "users", "items"))
    metric = f"{_text(header.get('metric'))}@{_text(header.get('cutoff'))}"
    span = evaluation.get("interval")
    interval = f" ({_number(span[0])} to {_number(span[1])})" if isinstance(span, list) and len(span) == 2 else ""
    scored, users = (_number(evaluation.get(name)) for name in ("n_scored_users", "n_users"))
    judged = f", by {scored} of {users} users" if "n_scored_users" in evaluation else ""
    winner, reused = short_name(_text(header.get("best_class"))), _mapping(tuning.get("reused_from"))
    trials = f"the best of {_number(tuning.get('completed'))} trials"
    origin = f"with the parameters of {_text(reused.get('sha8'))}" if reused else trials
    return {
        "artifact": _text(header["artifact"]),
        "model_version": _text(header["model_version"]),
        "kid": _text(header["kid"]),
        "bytes": _number(header["artifact_bytes"]),
        "recipe": f"{_text(header.get('recipe_name'))}, hash {_text(header.get('recipe_hash'))}",
        "trained_at": f"{_text(header.get('trained_at'))} by svc {_text(header.get('svc_version'))}",
        "data": ", ".join(counts),
        "algorithm": f"{winner}, {origin}",
        **({"recency": _number(header["recency"])} if "recency" in header else {}),
        **_events(header),
        **_scale(header),
        "score": f"{metric} {_number(header.get('best_score'))}{interval}{judged}",
        **({"score_with_order": _number(header["score_with_order"])} if "score_with_order" in header else {}),
        **_ranker(header),
        "popularity": _number(_mapping(best.get("TopPopRecommender")).get("score")),
        "rank_ms": _number(header.get("rank_ms")),
        "features": ", ".join(f"{side} ({_columns(_mapping(features[side]))})" for side in sides) or "-",
        "promotion": _text(promotion.get("decision")),
    }


def _events(header: dict[str, Any]) -> dict[str, str]:
    """Return `{"events": line}` with the weight of each event, and whether it hides its item and was judged.

    The result is empty for a model without events.
    """
    kinds = []
    for kind in _mappings(header.get("events")):
        roles = "".join(f", {role}" for role in ("seen", "target") if kind.get(role) is True)
        kinds.append(f"{_text(kind.get('event'))} ({_number(kind.get('weight'))}{roles})")
    return {"events": ", ".join(kinds)} if kinds else {}


def _scale(header: dict[str, Any]) -> dict[str, str]:
    """Return `{"weight_scale": line}`, with the scale of each part of a blend whose parts have different ones."""
    params = _mapping(header.get("best_params"))
    if "weight_scale" in params:
        return {"weight_scale": _text(params["weight_scale"])}
    of_parts = [
        f"{_text(scale)} ({short_name(_text(part.get('class')))})"
        for part in _mappings(header.get("parts"))
        if "weight" in part and (scale := _mapping(part.get("params")).get("weight_scale")) is not None
    ]
    return {"weight_scale": ", ".join(of_parts)} if of_parts else {}


def _ranker(header: dict[str, Any]) -> dict[str, str]:
    """Return `{"ranker": line}`. The line is about the learned order of the first page.

    It tells whether the model uses this order, its gain, and the strength of each group of features, strongest first.
    The result is empty if the training judged no ranker.
    """
    ranker = _mapping(header.get("ranker"))
    if not ranker:
        return {}
    gain, groups = _mapping(ranker.get("gain")), _mapping(ranker.get("groups"))
    span = f"{_number(gain.get('value'))} ({_number(gain.get('low'))} to {_number(gain.get('high'))})"
    # Values of other types would end the sort.
    parts = sorted(groups.items(), key=lambda group: -group[1] if isinstance(group[1], float) else 0.0)
    by = f", by {', '.join(f'{_text(name)} {_number(value)}' for name, value in parts)}" if parts else ""
    return {"ranker": f"{'used' if ranker.get('ships') is True else 'not used'}, gain {span}{by}"}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _number(value: Any) -> str:
    # True is an int in Python.
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.5g}" if isinstance(value, float) else _text(value)


def _lines(header: dict[str, Any], prefix: str = "") -> list[str]:
    """Return one `name: value` line for each leaf, with dots in the names of nested leaves.

    The positions in a list of objects count as their names.
    """
    lines: list[str] = []
    for name, value in header.items():
        are_objects = isinstance(value, list) and all(isinstance(element, dict) for element in value)
        deeper = {str(position): element for position, element in enumerate(value)} if are_objects else value
        if isinstance(deeper, dict) and deeper:
            lines += _lines(deeper, f"{prefix}{name}.")
        else:
            # A header of another program may hold escapes that move the cursor of a terminal.
            lines.append(printable(f"{prefix}{name}: {_text(value)}"))
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(element) for element in value)
    return "-" if value is None else str(value)
