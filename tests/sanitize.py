"""`make sanitize`: the tests of the native kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

The kernels are built with `VN_SANITIZE=1` into a cache of their own; pytest runs with the sanitizers' libraries
preloaded, as they require. Any report is a failure, also one of a process that a test started.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from vector_neurons.kernels import cache
from vector_neurons.kernels.build import compiler

PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=sys"]
TESTS = ["tests/kernels", "--ignore=tests/kernels/test_triton.py"]
# The sanitizers, and the C++ library whose symbols they intercept at start.
LIBRARIES = ["libasan.so", "libubsan.so", "libstdc++.so"]
CHECK = "from vector_neurons import kernels; kernels.use('native')"


def main(arguments):
    environment = os.environ | {"VN_SANITIZE": "1", "XDG_CACHE_HOME": str(cache() / "sanitize"), "VN_KERNELS": "auto"}
    if subprocess.run([sys.executable, "-m", "vector_neurons", "kernels", "build"], env=environment).returncode:
        return 1
    with tempfile.TemporaryDirectory() as folder:
        # Aborting fails any test that starts such a process. Tests may redirect stderr, so AddressSanitizer logs to
        # files; UndefinedBehaviorSanitizer beside it cannot, so pytest must leave stderr as it is (--capture=sys).
        environment |= {
            "LD_PRELOAD": " ".join(map(found, LIBRARIES)),
            # Leaks are not reported: Python does not free all memory at exit.
            "ASAN_OPTIONS": f"abort_on_error=1:detect_leaks=0:log_path={folder}/report",
            "UBSAN_OPTIONS": "abort_on_error=1:print_stacktrace=1",
        }
        codes = []
        with Path(folder, "stderr").open("w") as stderr:
            for words in (["-c", CHECK], [*PYTEST, *(arguments or TESTS)]):
                codes.append(subprocess.run([sys.executable, *words], env=environment, stderr=stderr).returncode)
        written = [path.read_text(errors="replace") for path in sorted(Path(folder).iterdir())]
    reports = sum(text.count(f"{mark}: ") for text in written for mark in ("ERROR: AddressSanitizer", "runtime error"))
    failed = any(codes) or reports > 0
    if failed:
        print(*filter(None, written), sep="\n", file=sys.stderr)
    print(f"sanitizers: {reports} reports")
    return int(failed)


def found(name):
    """The path of one of the compiler's libraries."""
    words = [*(compiler() or []), f"-print-file-name={name}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
