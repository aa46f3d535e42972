"""Expansion of recipe variables."""

from __future__ import annotations

import pytest

from svc.errors import RecipeError, RecipeSecurityError, UsageError
from svc.recipe.variables import expand, recipe_variables


def test_only_recipe_variables_are_accepted() -> None:
    """`--env-var` overrides the environment. Other names are refused without showing their values."""
    found = recipe_variables({"SVC_RECIPE_A": "1", "HOME": "/root"}, ["SVC_RECIPE_A=2", "SVC_RECIPE_B=x=y"])
    assert found == {"SVC_RECIPE_A": "2", "SVC_RECIPE_B": "x=y"}
    for wrong in ("HOME=hunter2", "hunter2", "SVC_RECIPE_=hunter2"):
        with pytest.raises(UsageError) as caught:
            recipe_variables({}, [wrong])
        assert "hunter2" not in caught.value.message
    with pytest.raises(UsageError, match=r"^variables: 'DAY' is refused; give SVC_RECIPE_<NAME>=<value>$"):
        recipe_variables({}, ["DAY=1"], "variables")


def test_variables_are_expanded_once_and_not_in_queries() -> None:
    """References in values of variables stay. A query and its parameters stay as they are."""
    tree = {"a": ["x-${SVC_RECIPE_A}", 1], "query": "${SVC_RECIPE_A}", "query_parameters": {"p": "${SVC_RECIPE_A}"}}
    expanded = expand(tree, {"SVC_RECIPE_A": "${SVC_RECIPE_B}"}, "")
    assert expanded == {**tree, "a": ["x-${SVC_RECIPE_B}", 1]}


@pytest.mark.parametrize(
    "name", ["SECRET", "DB_PASSWORD", "PASSWD", "MyToken", "API_KEY", "AUTH", "BEARER", "CRED", "PRIVATE"]
)
def test_names_of_secrets_are_refused(name: str) -> None:
    """A variable that is named like a secret is refused, because a recipe must not contain secrets."""
    with pytest.raises(RecipeSecurityError, match=f"SVC_RECIPE_{name}"):
        expand({"a": f"${{SVC_RECIPE_{name}}}"}, {f"SVC_RECIPE_{name}": "hunter2"}, "")


@pytest.mark.parametrize("text", ["${HOME}", "${SVC_RECIPE_A", "${}", "${SVC_RECIPE_A:-x}", "${SVC_RECIPE_UNSET}"])
def test_invalid_references_are_refused(text: str) -> None:
    """Defaults, other variables and unclosed braces are errors that name the field."""
    with pytest.raises(RecipeError, match=r"^source\.path\[0\]: "):
        expand([text], {"SVC_RECIPE_A": "1"}, "source.path")
