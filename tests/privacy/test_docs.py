"""The example of the privacy proof in docs/testing.md runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_proof_runs_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)
    [example] = [block for block in blocks if "PrivacyProof" in block]
    program = tmp_path / "example.py"
    program.write_text(example)

    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": ""},
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
