"""Pages of `vn view`, read as their script reads them."""

import base64
import json
import re
import zlib

import numpy as np


def unpack(page):
    """The data of a page, with its arrays."""
    data, arrays = (re.search(rf'id="{name}">(.*?)</script>', page, re.S)[1] for name in ("data", "arrays"))
    blob = zlib.decompress(base64.b64decode(arrays))

    def fill(value):
        if isinstance(value, list):
            return [fill(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "start" in value:
            count = int(np.prod(value["shape"]))
            return np.frombuffer(blob, f"<{value['type']}", count, value["start"]).reshape(value["shape"])
        return {name: fill(one) for name, one in value.items()}

    return fill(json.loads(data))
