"""Files of the services that build releases, which CI cannot run here, agree."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

import bf16codecs
from checkout import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "wheels.yml"
RECIPE = ROOT / "docs" / "registries" / "conda-forge" / "recipe.yaml"

Table = dict[str, Any]


@pytest.fixture(scope="module")
def pyproject() -> Table:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def project(pyproject: Table) -> Table:
    return pyproject["project"]


@pytest.fixture(scope="module")
def wheels(pyproject: Table) -> Table:
    return pyproject["tool"]["cibuildwheel"]


@pytest.fixture(scope="module")
def workflow() -> Table:
    if not WORKFLOW.exists():
        pytest.skip("the source distribution has no workflows")
    return yaml.safe_load(WORKFLOW.read_text("utf-8"))


@pytest.fixture(scope="module")
def recipe() -> Table:
    return yaml.safe_load(RECIPE.read_text("utf-8"))


def normalized(requirement: str) -> tuple[str, frozenset[str]]:
    """Return a package's name, and its bounds in any order."""
    name, bounds = re.fullmatch(r"([\w.-]+)\s*(\S*)", requirement).groups()
    return re.sub(r"[-_.]+", "-", name).lower(), frozenset(filter(None, bounds.split(",")))


def test_wheels_are_built_for_the_versions_that_are_claimed(project: Table, wheels: Table) -> None:
    claimed = [
        c.removeprefix("Programming Language :: Python :: 3.")
        for c in project["classifiers"]
        if c.startswith("Programming Language :: Python :: 3.")
    ]
    versions = [build.removesuffix("-*").removeprefix("cp3") for build in wheels["build"]]
    assert [v for v in versions if not v.endswith("t")] == claimed
    assert project["requires-python"] == f">=3.{claimed[0]}"
    threads = [c for c in project["classifiers"] if ":: Free Threading ::" in c]
    assert len(threads) == len([v for v in versions if v.endswith("t")]) == 1


def test_module_has_the_stable_abi_and_needs_no_gil(pyproject: Table, wheels: Table) -> None:
    stable = pyproject["tool"]["scikit-build"]["wheel"]["py-api"]
    assert f"{stable}-*" in wheels["build"]
    text = (ROOT / "CMakeLists.txt").read_text("utf-8")
    (options,) = re.findall(r"nanobind_add_module\(_core ([A-Z_ ]+)", text)
    assert {"STABLE_ABI", "FREE_THREADED"} <= set(options.split())
    assert "${SKBUILD_SABI_COMPONENT}" in text  # or there is no stable ABI, and the wheel says so


def test_tests_of_wheels_exist(pyproject: Table, wheels: Table) -> None:
    assert set(wheels["test-groups"]) <= set(pyproject["dependency-groups"])
    named = re.findall(r"\{project\}/(\S+)", " ".join(wheels["test-command"]))
    assert named
    for path in named:
        assert (ROOT / path).exists()


def test_each_platform_has_a_runner(workflow: Table, wheels: Table) -> None:
    jobs = workflow["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    run = {(job["platforms"].split()[0], job["platforms"].split()[-1]) for job in jobs}
    families = {"linux": "manylinux", "macos": "macosx", "windows": "win"}
    configured = {
        (families[system], arch) for system in families for arch in wheels[system]["archs"]
    }
    assert run == configured
    assert all("musllinux" in job["platforms"] for job in jobs if "ubuntu" in job["runner"])
    assert not any("musllinux" in build for build in wheels.get("skip", []))


def test_only_a_tag_publishes_and_without_a_password(workflow: Table) -> None:
    publish = workflow["jobs"]["publish"]
    assert "refs/tags/v" in publish["if"]
    assert set(publish["needs"]) == {"wheels", "sdist"} == set(workflow["jobs"]) - {"publish"}
    assert publish["permissions"] == {"id-token": "write"}
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in WORKFLOW.read_text("utf-8")


def test_recipe_is_of_this_version(recipe: Table, project: Table) -> None:
    assert recipe["schema_version"] == 1
    assert recipe["context"] == {"name": project["name"], "version": bf16codecs.__version__}
    about = recipe["about"]
    assert about["summary"] == project["description"]
    assert about["license"] == project["license"]
    assert [about["license_file"]] == project["license-files"]


def test_recipe_needs_what_we_need(recipe: Table, pyproject: Table, project: Table) -> None:
    needs = recipe["requirements"]
    assert needs["run"][0] == needs["host"][0] == "python"
    assert {*map(normalized, needs["run"][1:])} == {*map(normalized, project["dependencies"])}
    assert {*map(normalized, needs["host"][2:])} == {
        *map(normalized, pyproject["build-system"]["requires"])
    }
    oldest = project["requires-python"].removeprefix(">=")
    assert recipe["build"]["skip"] == [f'match(python, "<{oldest}")']


def test_recipe_tests_commands_that_exist(recipe: Table, project: Table) -> None:
    (script,) = [test["script"] for test in recipe["tests"] if "script" in test]
    assert {command.split()[0] for command in script} <= set(project["scripts"])


def test_page_of_releases_has_every_platform(wheels: Table) -> None:
    text = (ROOT / "docs" / "releases.md").read_text("utf-8")
    for system in ("linux", "macos", "windows"):
        for arch in wheels[system]["archs"]:
            assert re.search(rf"\| [^|]*\b{arch}\b", text), arch
    assert RECIPE.relative_to(ROOT / "docs").as_posix() in text
