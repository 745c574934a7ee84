"""Minimum versions of dependencies exclude releases with known security advisories."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import regard
from regard.errors import UserError, import_optional

# First release without a known advisory (2026-11), and the advisory that the release before it has.
FLOORS = {
    "ctranslate2": "4.8.1",
    "h11": "0.16",  # CVE-2025-43859
    "onnx": "1.21",  # CVE-2026-27489, CVE-2026-28500, CVE-2026-34445
    "pillow": "12.3",  # CVE-2026-59199 and thirteen others
    "protobuf": "6.33.5",  # CVE-2026-0994
    "pyarrow": "23.0.1",  # CVE-2026-25087
    "pytest": "9.0.3",  # CVE-2025-71176
    "python-multipart": "0.0.31",  # CVE-2026-53538, CVE-2026-53539, CVE-2026-53540
    "ray": "2.54",  # CVE-2026-27482
    "sentencepiece": "0.2.1",  # CVE-2026-1260
    "starlette": "1.3.1",  # CVE-2026-48710, CVE-2026-54283
    "timm": "1.0.28",  # GHSA-pqww-w348-m542
    "torch": "2.10",  # CVE-2026-24747
    "transformers": "5.10",  # CVE-2026-4372, CVE-2026-5241, CVE-2026-9856
}


def requirements() -> list[Requirement]:
    """Return all requirements of the package and its extras."""
    content = tomllib.loads((Path(regard.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    project = content["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return [requirement for text in texts if (requirement := Requirement(text)).name != "regard"]


@pytest.mark.parametrize("name", FLOORS)
def test_minimum_version_has_no_known_advisory(name: str) -> None:
    found = [requirement for requirement in requirements() if requirement.name.lower() == name]
    assert found, f"{name} has no requirement, so any version may be installed"
    for requirement in found:
        floors = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
        assert floors, f"{requirement} has no minimum version"
        assert max(floors) >= Version(FLOORS[name]), f"{requirement} is below {FLOORS[name]}"


def test_installed_versions_satisfy_the_requirements() -> None:
    for requirement in requirements():
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:  # an extra that is not installed, or a marker of another platform
            continue
        assert requirement.specifier.contains(installed, prereleases=True), f"{requirement}, but {installed} installed"


def test_missing_optional_package_is_named_with_its_extra() -> None:
    with pytest.raises(UserError, match=r"needs the package not_installed; install it with pip install 'regard\[hf\]'"):
        import_optional("not_installed.module", "hf")
