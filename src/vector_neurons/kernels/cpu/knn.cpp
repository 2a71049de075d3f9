// Nearest neighbors without the whole distance matrix. Candidates, of which there are few more than k, are found in the
// precision of the input, whose error is bounded; their distances are then recomputed in float64. Candidates come from
// blocks of the matrix (knn_blocks.h) or, in larger clouds, from a k-d tree in a subspace of few dimensions
// (knn_tree.h): features of networks lie close to such a subspace, and distances can only be smaller in it.
//
// Ties are those of vector_neurons.geometry.knn. Points come in canonical order, so ties go to the lower index.

#include <ATen/Dispatch.h>
#include <torch/library.h>

#include "knn_blocks.h"
#include "knn_tree.h"

using namespace vector_neurons;

namespace {

constexpr int64_t BFLOAT16_MIN_ELEMENTS = 1 << 13;  // of a cloud, from which on torch leaves its products to oneDNN

template <typename T>
void search(const Tensor& x, int64_t n, int64_t k, bool include_self, double ulps, int64_t* out) {
  const Query<T> query{x.const_data_ptr<T>(), nullptr, n, x.size(1), k, include_self, ulps};
  if (const auto subspace = principal_subspace(x, n))
    search_tree(query, x, *subspace, out);
  else if (std::is_same_v<T, float> && x.size(1) > DIFFERENCES_MAX_DIM && x.numel() >= BFLOAT16_MIN_ELEMENTS &&
           has_fast_bfloat16())
    search_blocks<T, at::BFloat16>(query, x, 0, nullptr, out);
  else
    search_blocks<T, T>(query, x, 0, nullptr, out);
}

// For every point of each cloud (clouds, points, dim), the k nearest of its first present[cloud] points.
Tensor knn_canonical(const Tensor& x, const Tensor& present, int64_t k, bool include_self, double ulps) {
  TORCH_CHECK(x.dim() == 3 && x.is_contiguous() && present.is_contiguous() && present.numel() == x.size(0),
              "knn_canonical needs (clouds, points, dim), and how many of the points are present in each cloud");
  for (int64_t cloud = 0; cloud < x.size(0); ++cloud) {
    const int64_t n = present.const_data_ptr<int64_t>()[cloud];
    TORCH_CHECK(1 <= k && k + !include_self <= n && n <= x.size(1), k, " neighbors of ", n, " points");
  }
  // Autocast would round the products.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::NoGradGuard no_grad;
  Tensor out = at::empty({x.size(0), x.size(1), k}, x.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "knn_canonical", [&] {
    for (int64_t cloud = 0; cloud < x.size(0); ++cloud)
      search<scalar_t>(x[cloud], present.const_data_ptr<int64_t>()[cloud], k, include_self, ulps,
                       out[cloud].data_ptr<int64_t>());
  });
  return out;
}

// For every place, the k nearest of the first present[cloud] points of a cloud. x (clouds, points + places, dim) holds
// the points and behind them the places; selves (clouds, places) which point each place is, or -1.
Tensor nearest_canonical(const Tensor& x, const Tensor& present, const Tensor& selves, int64_t k, double ulps) {
  const int64_t clouds = x.size(0), places = selves.size(1), points = x.size(1) - places, dim = x.size(2);
  TORCH_CHECK(x.dim() == 3 && x.is_contiguous() && present.is_contiguous() && present.numel() == clouds &&
                  selves.is_contiguous() && selves.size(0) == clouds && points > 0,
              "nearest_canonical needs points and places (clouds, points + places, dim)");
  for (int64_t cloud = 0; cloud < clouds; ++cloud) {
    const int64_t n = present.const_data_ptr<int64_t>()[cloud];
    TORCH_CHECK(1 <= k && k <= n && n <= points, k, " nearest of ", n, " points");
    for (int64_t i = 0; i < places; ++i) {
      const int64_t self = selves.const_data_ptr<int64_t>()[cloud * places + i];
      TORCH_CHECK_INDEX(-1 <= self && self < n, "place ", self, " is not one of ", n, " points");
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::NoGradGuard no_grad;
  Tensor out = at::empty({clouds, places, k}, x.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "nearest_canonical", [&] {
    for (int64_t cloud = 0; cloud < clouds; ++cloud) {
      const int64_t n = present.const_data_ptr<int64_t>()[cloud];
      const Query<scalar_t> query{x[cloud].const_data_ptr<scalar_t>(), nullptr, n, dim, k, true, ulps};
      search_blocks<scalar_t, scalar_t>(query, x[cloud], points, selves.const_data_ptr<int64_t>() + cloud * places,
                                        out[cloud].data_ptr<int64_t>());
    }
  });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(vector_neurons, CPU, m) {
  m.impl("knn_canonical", &knn_canonical);
  m.impl("nearest_canonical", &nearest_canonical);
}
