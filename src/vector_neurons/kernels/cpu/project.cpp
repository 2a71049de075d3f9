// The images of points under a linear map. Products are taken a chunk of rows at a time: what they write is then still
// in cache when they come to it again, and threads change no bit.

#include <torch/library.h>

#include "block_input.h"

using namespace vector_neurons;

namespace {

constexpr int64_t MOST = 768;  // rows of a chunk

template <typename Body>
void in_chunks(int64_t rows, const Body& body) {
  const int64_t chunk = std::clamp<int64_t>((rows + 1) / 2, 1, MOST);  // two at least, as in rows.h
  at::parallel_for(0, (rows + chunk - 1) / chunk, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard no_grad;
    for (int64_t start = first * chunk; start < std::min(rows, last * chunk); start += chunk)
      body(start, std::min(chunk, rows - start));
  });
}

Tensor flat(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// x (..., inputs) by weight (inputs, columns).
Tensor images(const Tensor& x, const Tensor& weight) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  TORCH_CHECK(weight.dim() == 2 && x.dim() && x.size(-1) == weight.size(0), "a weight (", weight.sizes(),
              ") cannot map rows (", x.sizes(), ")");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(1);
  Tensor out = allocate(shape, x.options());
  const Tensor rows = flat(x), to = flat(out);
  const Product product(weight.t());
  in_chunks(rows.size(0),
            [&](int64_t start, int64_t count) { product(rows.narrow(0, start, count), to.narrow(0, start, count)); });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) { m.impl("project", &images); }
