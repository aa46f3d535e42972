"""Clients that five generators make from the OpenAPI document pass strict type checks.

`SVC_TEST_CLIENTS` names the folder of the generators, which `nox -s integration` creates.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.forked import program

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
REQUEST = """{
  user_id: "u1",
  filter: { genres: { any: ["Crime"] } },
  history: ["b3", { item_id: "b9", weight: 3 }],
  boosts: [{ filter: { year: { gte: 1990 } }, factor: 2 }],
}"""
SHOWN = """
  return [
    ...data.items.map((item) => item.item_id),
    ...(related?.items ?? []).map((item) => item.item_id),
    ...(users?.users ?? []).map((user) => user.user_id),
    ...(batch?.results ?? []).map((result) => (result.status === "ok" ? String(result.items.length) : result.code)),
    ...(popular?.items ?? []).map((item) => item.item_id),
  ];
}
"""
OPENAPI_FETCH = """
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

const client = createClient<paths>({ baseUrl: "http://localhost", headers: { "X-API-Key": "k" } });
const params = { path: { name: "shop" } };
const request: components["schemas"]["RecommendRequest"] = REQUEST;
export async function main(): Promise<string[]> {
  const { data, error } = await client.POST("/v1/recipes/{name}:recommend", { params, body: request });
  if (error) return error.code === "UNKNOWN_USER" ? [] : [error.detail];
  const seeds = { seed_items: ["b1"] };
  const { data: related } = await client.POST("/v1/recipes/{name}:recommend-related", { params, body: seeds });
  const audience = { item_id: "b1", limit: 2 };
  const { data: users } = await client.POST("/v1/recipes/{name}:recommend-users", { params, body: audience });
  const requests = { params, body: { requests: [request] } };
  const { data: batch } = await client.POST("/v1/recipes/{name}:batch-recommend", requests);
  const several = { params, body: { requests: [seeds] } };
  await client.POST("/v1/recipes/{name}:batch-recommend-related", several);
  const query = { filter: "{}", limit: 3 };
  const { data: popular } = await client.GET("/v1/recipes/{name}/popular", { params: { ...params, query } });
SHOWN"""
ORVAL = """
import { batchRecommend, batchRecommendRelated, popularItems } from "./orval";
import { recommend, recommendRelated, recommendUsers } from "./orval";
import type { RecommendRequest } from "./orval";

const request: RecommendRequest = REQUEST;
export async function main(): Promise<string[]> {
  const answers = {
    recommend: await recommend("shop", request),
    related: await recommendRelated("shop", { seed_items: ["b1"] }),
    users: await recommendUsers("shop", { item_id: "b1", limit: 2 }),
    batch: await batchRecommend("shop", { requests: [request] }),
    popular: await popularItems("shop", { filter: "{}", limit: 3 }),
  };
  if (answers.recommend.status !== 200) {
    return answers.recommend.data.code === "UNKNOWN_USER" ? [] : [answers.recommend.data.detail];
  }
  await batchRecommendRelated("shop", { requests: [{ seed_items: ["b1"] }] });
  const data = answers.recommend.data;
  const related = answers.related.status === 200 ? answers.related.data : undefined;
  const users = answers.users.status === 200 ? answers.users.data : undefined;
  const batch = answers.batch.status === 200 ? answers.batch.data : undefined;
  const popular = answers.popular.status === 200 ? answers.popular.data : undefined;
SHOWN"""
HEY_API = """
import { batchRecommend, batchRecommendRelated, popularItems } from "./hey";
import { recommend, recommendRelated, recommendUsers } from "./hey";
import type { RecommendRequest } from "./hey";

const path = { name: "shop" };
const request: RecommendRequest = REQUEST;
export async function main(): Promise<string[]> {
  const { data, error } = await recommend({ path, body: request });
  if (data === undefined) return error?.code === "UNKNOWN_USER" ? [] : [error?.detail ?? ""];
  const { data: related } = await recommendRelated({ path, body: { seed_items: ["b1"] } });
  const { data: users } = await recommendUsers({ path, body: { item_id: "b1", limit: 2 } });
  const { data: batch } = await batchRecommend({ path, body: { requests: [request] } });
  await batchRecommendRelated({ path, body: { requests: [{ seed_items: ["b1"] }] } });
  const { data: popular } = await popularItems({ path, query: { filter: "{}", limit: 3 } });
SHOWN"""
PYTHON_CLIENT = """
from opc import AuthenticatedClient
from opc.api.recipes_and_their_items import popular_items
from opc.api.recommendations import (
    batch_recommend, batch_recommend_related, recommend, recommend_related, recommend_users,
)
from opc.models import (
    Answered, BatchAnswer, BoostAsked, Error, ErrorCode, RecommendBatch, RecommendRequest, RelatedBatch, RelatedRequest,
    Users, UsersRequest,
)

request = RecommendRequest.from_dict({"filter": {"genres": {"any": ["Crime"]}}, "history": ["b3"]})
request.user_id = "u1"
request.boosts = [BoostAsked.from_dict({"filter": {"year": {"gte": 1990}}, "factor": 2.0})]


def main(client: AuthenticatedClient) -> list[str]:
    answer = recommend.sync("shop", client=client, body=request)
    if isinstance(answer, Error):
        return [] if answer.code is ErrorCode.UNKNOWN_USER else [answer.detail]
    related = recommend_related.sync("shop", client=client, body=RelatedRequest(seed_items=["b1"]))
    users = recommend_users.sync("shop", client=client, body=UsersRequest(item_id="b1", limit=2))
    batch = batch_recommend.sync("shop", client=client, body=RecommendBatch(requests=[request]))
    batch_recommend_related.sync("shop", client=client, body=RelatedBatch([RelatedRequest(seed_items=["b1"])]))
    popular = popular_items.sync("shop", client=client, filter_="{}", limit=3)
    results = batch.results if isinstance(batch, BatchAnswer) else []
    pages = [page for page in (answer, related, popular) if page and not isinstance(page, Error)]
    return [
        *(item.item_id for page in pages for item in page.items),
        *(user.user_id for user in (users.users if isinstance(users, Users) else [])),
        *(str(len(row.items)) if isinstance(row, Answered) else row.code.value for row in results),
    ]
"""
PYTHON_MODELS = """
from models import (
    BatchAnswer, Error, Failed, RecommendBatch, RecommendRequest, RelatedRequest, Users, UsersRequest,
)

asked = {"user_id": "u1", "filter": {"genres": {"any": ["Crime"]}}, "history": ["b3"]}
request = RecommendRequest.model_validate(asked | {"boosts": [{"filter": {"year": {"gte": 1990}}, "factor": 2.0}]})
batch = RecommendBatch(requests=[request])
user: str | None = request.user_id
factor: float = request.boosts[0].factor if request.boosts else 0.0
seeds = RelatedRequest.model_validate({"seed_items": ["b1"]}).seed_items


audience = UsersRequest(item_id="b1", limit=2)


def ids(users: Users) -> list[str]:
    return [user.user_id for user in users.users]


def codes(answer: BatchAnswer, error: Error) -> list[str]:
    return [error.code.value, *(row.code.value for row in answer.results if isinstance(row, Failed))]
"""
TSC = ["--strict", "--noEmit", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"]


def run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]}: {(done.stdout + done.stderr)[-3000:]}"


@pytest.fixture
def generators(tmp_path: Path) -> Path:
    """Return the folder of the generators, and write the OpenAPI document into `tmp_path`."""
    folder = os.environ.get("SVC_TEST_CLIENTS")
    if folder is None:
        pytest.skip("the generators are not installed: `nox -s integration` does it, and sets SVC_TEST_CLIENTS")
    with (tmp_path / "openapi.json").open("w") as document:
        subprocess.run([program(), "schema", "--openapi"], stdout=document, check=True)
    return Path(folder)


def test_typescript_programs_compile(generators: Path, tmp_path: Path) -> None:
    """TypeScript programs compile with the types of three generators.

    They use every verb, a batch, a filter, a boost and an error code.
    """
    programs = generators / "node_modules" / ".bin"
    run(tmp_path, str(programs / "openapi-typescript"), "openapi.json", "-o", "schema.ts")
    run(tmp_path, str(programs / "orval"), "--input", "openapi.json", "--output", "orval.ts", "--client", "fetch")
    run(tmp_path, str(programs / "openapi-ts"), "-i", "openapi.json", "-o", "hey", "-c", "@hey-api/client-fetch")
    (tmp_path / "node_modules").symlink_to(generators / "node_modules")
    for name, text in (("a.ts", OPENAPI_FETCH), ("b.ts", ORVAL), ("c.ts", HEY_API)):
        (tmp_path / name).write_text(text.replace("REQUEST", REQUEST).replace("SHOWN", SHOWN))
    run(tmp_path, str(programs / "tsc"), *TSC, "--lib", "es2022,dom,dom.iterable", "a.ts", "b.ts", "c.ts")


def test_python_programs_type_check(generators: Path, tmp_path: Path) -> None:
    """Python programs on the code of two generators pass `mypy --strict` and can be imported.

    mypy reads the generated modules but reports only errors of the programs.
    """
    programs = generators / "python" / "bin"
    client = ["--path", "openapi.json", "--output-path", "opc", "--meta", "none"]
    run(tmp_path, str(programs / "openapi-python-client"), "generate", *client)
    models = ["--output-model-type", "pydantic_v2.BaseModel", "--use-annotated", "--collapse-root-models"]
    document = ["--input", "openapi.json", "--input-file-type", "openapi", "--output", "models.py"]
    run(tmp_path, str(programs / "datamodel-codegen"), *document, *models)
    (tmp_path / "use_opc.py").write_text(PYTHON_CLIENT)
    (tmp_path / "use_models.py").write_text(PYTHON_MODELS)
    run(tmp_path, str(programs / "mypy"), "--strict", "--follow-imports=silent", "use_opc.py", "use_models.py")
    for module in ("use_opc", "use_models"):
        run(tmp_path, str(programs / "python"), "-c", f"import {module}")
