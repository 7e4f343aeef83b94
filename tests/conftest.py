"""What every test may use."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the folder of third-party data; skip the test where there is none."""
    folder = Path(os.environ.get("BLOCKBENCH_DATA") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no third-party data in {folder}; set BLOCKBENCH_DATA")
    return folder
