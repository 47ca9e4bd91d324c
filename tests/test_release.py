"""What is built for a release, by services that CI here cannot be: their files say the same."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

import bf16codecs
from checkout import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
WHEELS = PYPROJECT["tool"]["cibuildwheel"]
WORKFLOW = ROOT / ".github" / "workflows" / "wheels.yml"
RECIPE = ROOT / "docs" / "registries" / "conda-forge" / "recipe.yaml"
VERSIONS = [build.removesuffix("-*").removeprefix("cp3") for build in WHEELS["build"]]


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    if not WORKFLOW.exists():
        pytest.skip("the source distribution has no workflows")
    return yaml.safe_load(WORKFLOW.read_text("utf-8"))


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    return yaml.safe_load(RECIPE.read_text("utf-8"))


def normalized(requirement: str) -> tuple[str, frozenset[str]]:
    """Return a package's name, and its bounds in any order."""
    name, bounds = re.fullmatch(r"([\w.-]+)\s*(\S*)", requirement).groups()
    return re.sub(r"[-_.]+", "-", name).lower(), frozenset(filter(None, bounds.split(",")))


def test_wheels_are_built_for_the_versions_that_are_claimed() -> None:
    claimed = [
        c.removeprefix("Programming Language :: Python :: 3.")
        for c in PROJECT["classifiers"]
        if c.startswith("Programming Language :: Python :: 3.")
    ]
    assert [v for v in VERSIONS if not v.endswith("t")] == claimed
    assert PROJECT["requires-python"] == f">=3.{claimed[0]}"
    threads = [c for c in PROJECT["classifiers"] if ":: Free Threading ::" in c]
    assert len(threads) == len([v for v in VERSIONS if v.endswith("t")]) == 1


def test_module_is_built_for_the_stable_abi_and_without_the_gil() -> None:
    stable = PYPROJECT["tool"]["scikit-build"]["wheel"]["py-api"]
    assert f"{stable}-*" in WHEELS["build"]
    text = (ROOT / "CMakeLists.txt").read_text("utf-8")
    (options,) = re.findall(r"nanobind_add_module\(_core ([A-Z_ ]+)", text)
    assert {"STABLE_ABI", "FREE_THREADED"} <= set(options.split())
    assert "${SKBUILD_SABI_COMPONENT}" in text  # or there is no stable ABI, and the wheel says so


def test_tests_of_wheels_exist() -> None:
    assert set(WHEELS["test-groups"]) <= set(PYPROJECT["dependency-groups"])
    named = re.findall(r"\{project\}/(\S+)", " ".join(WHEELS["test-command"]))
    assert named
    for path in named:
        assert (ROOT / path).exists()


def test_each_platform_has_a_runner(workflow: dict[Any, Any]) -> None:
    jobs = workflow["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    run = {(job["platforms"].split()[0], job["platforms"].split()[-1]) for job in jobs}
    families = {"linux": "manylinux", "macos": "macosx", "windows": "win"}
    configured = {
        (families[system], arch) for system in families for arch in WHEELS[system]["archs"]
    }
    assert run == configured
    assert all("musllinux" in job["platforms"] for job in jobs if "ubuntu" in job["runner"])
    assert not any("musllinux" in build for build in WHEELS.get("skip", []))


def test_only_a_tag_publishes_and_without_a_password(workflow: dict[Any, Any]) -> None:
    publish = workflow["jobs"]["publish"]
    assert "refs/tags/v" in publish["if"]
    assert set(publish["needs"]) == {"wheels", "sdist"} == set(workflow["jobs"]) - {"publish"}
    assert publish["permissions"] == {"id-token": "write"}
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in WORKFLOW.read_text("utf-8")


def test_recipe_is_of_this_version(recipe: dict[str, Any]) -> None:
    assert recipe["schema_version"] == 1
    assert recipe["context"] == {"name": PROJECT["name"], "version": bf16codecs.__version__}
    about = recipe["about"]
    assert about["summary"] == PROJECT["description"]
    assert about["license"] == PROJECT["license"]
    assert [about["license_file"]] == PROJECT["license-files"]


def test_recipe_needs_what_the_package_needs(recipe: dict[str, Any]) -> None:
    needs = recipe["requirements"]
    assert needs["run"][0] == needs["host"][0] == "python"
    assert {*map(normalized, needs["run"][1:])} == {*map(normalized, PROJECT["dependencies"])}
    assert {*map(normalized, needs["host"][2:])} == {
        *map(normalized, PYPROJECT["build-system"]["requires"])
    }
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert recipe["build"]["skip"] == [f'match(python, "<{oldest}")']


def test_recipe_tests_commands_that_exist(recipe: dict[str, Any]) -> None:
    (script,) = [test["script"] for test in recipe["tests"] if "script" in test]
    assert {command.split()[0] for command in script} <= set(PROJECT["scripts"])


def test_page_of_releases_has_every_platform() -> None:
    text = (ROOT / "docs" / "releases.md").read_text("utf-8")
    for system in ("linux", "macos", "windows"):
        for arch in WHEELS[system]["archs"]:
            assert re.search(rf"\| [^|]*\b{arch}\b", text), arch
    assert RECIPE.relative_to(ROOT / "docs").as_posix() in text
