"""For the tests of `vn data`."""

import pytest


@pytest.fixture
def convert(vn_command, tmp_path):
    """Run `vn data SET --from SOURCE`: exit code, output, the lines of the standard error that are not progress."""

    def run(name, source, *more):
        code, out, err = vn_command(
            "data", name, "--from", source, "--data-root", tmp_path / "root", "--workers", "1", *more
        )
        return code, out, [line for line in err.splitlines() if not line.startswith("read ")]

    run.root = tmp_path / "root"
    run.packs = lambda: (
        [file.name for file in run.root.iterdir() if file.suffix != ".partial"] if run.root.exists() else []
    )
    return run
