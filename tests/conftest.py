"""What every test may use."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure. CI runs the same examples every time; elsewhere new ones
# are drawn, and what they find stays in .hypothesis until it is mended.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of third-party data; skip the test where there is none."""
    folder = Path(os.environ.get("BLOCKBENCH_DATA") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no third-party data in {folder}; set BLOCKBENCH_DATA")
    return folder
