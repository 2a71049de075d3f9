"""`make demo`, in small: from training to the report."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL = [
    "--epochs",
    "1",
    "--size",
    "42",
    "--batch-size",
    "14",
    "--points",
    "64",
    "--stored-points",
    "64",
    "--early-points",
    "32",
]


def test_the_demo_trains_tests_and_reports(tmp_path):
    demo = [sys.executable, str(ROOT / "examples" / "demo.py"), "--out", str(tmp_path / "demo"), *SMALL]
    done = subprocess.run(demo, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = {words[0]: words[1:] for words in map(str.split, done.stdout.splitlines()) if words}
    assert len(table["DGCNN"]) == len(table["VN-DGCNN"]) == 3
    assert float(table["VN-DGCNN"][-1]) <= 1e-5
    assert float(table["DGCNN"][-1]) >= 1e-1
    page = (tmp_path / "demo" / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == 4  # two curves, the confusion, the poses
    assert not re.search(r'(src|href)="http', page)  # needs nothing beside itself
    assert all(f"<td>{number}</td>" in page for number in table["VN-DGCNN"])
