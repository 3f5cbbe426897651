"""The distributions as a user gets them: what is in them, what they say of themselves, and an audit in an empty environment."""

import os
import re
import resource
import subprocess
import sys
import tarfile
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest

import fairlen

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def run(*command: str | Path) -> str:
    # nothing of this checkout
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder that `make wheel` fills: the wheel is built from the sources' archive, which so has all that it needs."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in (source / "fairlen").rglob("*") if path.is_file()}
    own = {name for name in files if "__pycache__" not in name}
    about = {name for name in names if name.startswith(f"fairlen-{fairlen.__version__}.dist-info/")}
    assert names - about == own
    assert "fairlen/py.typed" in names and "fairlen/playground/model.safetensors" in names
    assert f"fairlen-{fairlen.__version__}.dist-info/licenses/LICENSE" in about


def test_the_wheel_says_what_it_is(wheel):
    with ZipFile(wheel) as archive:
        folder = f"fairlen-{fairlen.__version__}.dist-info"
        found = message_from_string(archive.read(f"{folder}/METADATA").decode())
        points = archive.read(f"{folder}/entry_points.txt").decode()
    assert (found["Name"], found["Version"]) == ("fairlen", fairlen.__version__)
    assert (found["License-Expression"], found["License-File"]) == ("Apache-2.0", "LICENSE")
    assert found["Requires-Python"] == ">=3.11" and found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload() == (ROOT / "README.md").read_text()
    core = {re.split(r"[<>=!]", need)[0] for need in found.get_all("Requires-Dist") if "extra ==" not in need}
    assert core == {"docstring-parser", "jinja2", "numpy", "packaging", "pyarrow", "rich", "tokenizers"}
    assert "fairlen = fairlen.__main__:main" in points and "fairlen = fairlen.integrations.verl.plugin" in points


def test_the_sources_have_what_a_clone_has(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    tracked = run("git", "-C", ROOT, "ls-files").splitlines()
    hidden = {name for name in tracked if name.startswith(".")}
    assert set(tracked) - hidden <= names


def test_an_empty_environment_audits_within_half_a_minute(wheel, tmp_path):
    """14 s from a warm cache; of the processor, because other tests run. Without torch."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    run(programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", wheel)
    said = run(programs / "fairlen", "audit", ROOT / "tests/fixtures_formats/trl")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "TRL" in said
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30
    place = run(programs / "python", "-P", "-c", "import fairlen; print(fairlen.__file__)")
    assert Path(place.strip()).is_relative_to(tmp_path)
