// Linear map of features: x @ weight, chunk by chunk. A chunk's output stays in cache while its columns are written,
// and since chunks do not depend on the number of threads, neither does any bit of the result.

#include <torch/library.h>

#include "block_input.h"

using namespace vector_neurons;

namespace {

constexpr int64_t PROJECT_CHUNK_ROWS = 768;

template <typename Body>
void for_each_chunk(int64_t rows, const Body& body) {
  // At least two chunks, as in block_input.h.
  const int64_t chunk = std::clamp<int64_t>((rows + 1) / 2, 1, PROJECT_CHUNK_ROWS);
  at::parallel_for(0, (rows + chunk - 1) / chunk, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    for (int64_t start = first * chunk; start < std::min(rows, last * chunk); start += chunk)
      body(start, std::min(chunk, rows - start));
  });
}

Tensor flatten_rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// x (..., inputs) by weight (inputs, columns).
Tensor project(const Tensor& x, const Tensor& weight) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  TORCH_CHECK(weight.dim() == 2 && x.dim() && x.size(-1) == weight.size(0), "a weight (", weight.sizes(),
              ") cannot map rows (", x.sizes(), ")");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(1);
  Tensor out = allocate(shape, x.options());
  const Tensor rows = flatten_rows(x), to = flatten_rows(out);
  const Matmul matmul(weight.t());
  for_each_chunk(rows.size(0), [&](int64_t start, int64_t count) {
    matmul(rows.narrow(0, start, count), to.narrow(0, start, count));
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) { m.impl("project", &project); }
