"""Measure how soon a page of `vn view` shows its first picture in headless Chromium; or take a picture of the page.

    python benchmarks/view_page.py demo/view.html
    python benchmarks/view_page.py demo/view.html --turns 12 --screenshot docs/view.png

Times are of the page's main thread until the first picture: CPU time, which a busy machine changes little, and the time
that passes from the start of the navigation, which it changes a lot.
"""

import argparse
import statistics
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import Chromium

READY = "!!document.body && !!document.body.dataset.ready"


def cpu_time(browser: Chromium) -> float:
    """CPU time of the main thread since the page was opened, in seconds; each navigation starts it at 0."""
    metrics = browser.call("Performance.getMetrics")["metrics"]
    return next(one["value"] for one in metrics if one["name"] == "TaskDuration")


def main() -> None:
    """Open the page several times and print the median time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--turns", type=int, default=0, help="tip the shape by so many times 7.5° before")
    parser.add_argument("--screenshot", type=Path, help="write the page to this PNG file, and measure nothing")
    options = parser.parse_args()
    browser = Chromium()
    try:
        browser.prefer(color_scheme="light", reduced_motion="reduce")  # bars stand where they belong at once
        browser.resize(1440, 640)
        browser.open(options.page, READY)
        if options.screenshot:
            browser.run("document.querySelector('canvas').focus({ focusVisible: false })")
            for _ in range(options.turns):
                browser.press("ArrowUp")
            browser.screenshot(options.screenshot)
            picture = Image.open(options.screenshot).quantize(256, dither=Image.Dither.NONE)  # at 40 % of the size
            picture.save(options.screenshot, optimize=True)
            return
        browser.call("Performance.enable", timeDomain="threadTicks")
        busy, passed = [], []
        for _ in range(options.trials):
            browser.open(options.page, READY)
            busy.append(round(1000 * cpu_time(browser)))
            passed.append(int(browser.run("document.body.dataset.ready")))
        print(f"{options.page.stat().st_size / 1e6:.2f} MB, medians of {options.trials}:")
        for name, times in (("CPU time", busy), ("time that passes", passed)):
            print(f"{name} until the first picture: {statistics.median(times)} ms ({min(times)} to {max(times)})")
    finally:
        browser.close()


if __name__ == "__main__":
    main()
