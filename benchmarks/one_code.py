"""The paper's decoder behind the encoder of FrameNet: does a better encoder close the gap of one code for a shape?

    vn train reconstruction --data occupancy --model benchmarks/one_code.py:OneCode ...

`docs/reconstruction.md` has the whole command, and the paper's methods after as many clouds.
"""

from typing import Any

from torch import Tensor

from vector_neurons.models import FrameNetOccupancy
from vector_neurons.models.hierarchy import NEGATIVE_SLOPE, normalize
from vector_neurons.models.inputs import mask_of
from vector_neurons.models.occupancy_decoder import Code, Decoder, InvariantQueries
from vector_neurons.nn._masked import masked_mean
from vector_neurons.nn.hybrid import HybridBlock


class OneCode(FrameNetOccupancy):
    """Occupancy from the vectors Z of a whole cloud alone, as in the paper: `‖x‖²`, `⟨x, Z⟩`, VN-In(Z)."""

    def __init__(self, code: int = 32, decoder_hidden: int = 96, width: int = 48) -> None:
        super().__init__(width=width)
        del self.finer, self.near, self.whole, self.blocks, self.logits
        last = len(self.centers) * width
        self.embed = HybridBlock((last, last // 4), (last, code), negative_slope=NEGATIVE_SLOPE)
        self.decoder = Decoder(InvariantQueries(code, decoder_hidden, "frame"), decoder_hidden, conditional=True)

    def encode(self, points: Tensor, lengths: Any = None, normals: Any = None) -> Any:
        """The center and the size of each cloud, and its vectors."""
        mask = mask_of(points, lengths)
        points, center, size = normalize(points, mask)
        last = self._stages(points, normals, mask)[-1]
        vectors = self.embed(last.x, last.mask).vectors
        return center, size, Code(masked_mean(vectors, [1], last.mask).squeeze(1))

    def decode(self, code: Any, queries: Tensor) -> Tensor:
        """Logits of the queries."""
        center, size, own = code
        return self.decoder(own, (queries - center) / size)
