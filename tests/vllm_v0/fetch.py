"""Fetch the parts of vLLM 0.5.5 that its v0 scheduler needs, into this venv.

``python fetch.py`` asks pip for the published wheel and unpacks a dozen of its Python
files; torch, CUDA and the compiled parts are not needed, so any platform will do. The
wheel and the files stay in the venv's folder and never become part of the repository.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.5.5"
UNPACKED = Path(sys.prefix) / f"vllm-{VERSION}"
NEEDED = (
    "vllm/block.py",
    "vllm/core/block/",
    "vllm/core/block_manager_v1.py",
    "vllm/core/evictor_v1.py",
    "vllm/core/evictor_v2.py",
    "vllm/core/interfaces.py",
    "vllm/core/scheduler.py",
    "vllm/sampling_params.py",
    "vllm/sequence.py",
    "vllm/utils.py",
)
# The only wheel of that release: any Python from 3.8 on, Linux on x86-64.
TAGS = (
    *("--platform", "manylinux1_x86_64", "--implementation", "cp"),
    *("--python-version", "38", "--abi", "abi3"),
)


def download(folder: Path) -> Path:
    """The wheel, downloaded by pip to a folder.

    Raises:
        CalledProcessError: pip could not get it; pip has said why on stderr.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", *TAGS]
    command += ["--dest", str(folder), f"vllm=={VERSION}"]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(wheel: Path) -> None:
    """Take what is needed out of the wheel, all of it or nothing."""
    partial = wheel.parent / "partial"
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(NEEDED)]
        archive.extractall(partial, members=names)
    partial.rename(UNPACKED)


def main() -> None:
    """Download, unpack, forget the wheel; nothing if that was done before."""
    if UNPACKED.is_dir():
        return
    print(f"fetching the wheel of vLLM {VERSION}, 135 MB, for its scheduler", flush=True)
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        try:
            unpack(download(Path(folder)))
        except subprocess.CalledProcessError:
            sys.exit(
                f"pip cannot get the wheel of vllm=={VERSION} (manylinux1_x86_64); its"
                " reason stands above. The tests against vLLM need it: see docs/v0.md."
            )


if __name__ == "__main__":
    main()
