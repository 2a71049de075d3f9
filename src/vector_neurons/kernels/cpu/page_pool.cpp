// The limit of the page pool, and how much it keeps.

#include "page_pool.h"

#include <torch/library.h>

namespace {

void set_page_pool_limit([[maybe_unused]] int64_t bytes) {
#ifdef VN_PAGE_POOL
  TORCH_CHECK(bytes >= 0, "the limit of the page pool must be at least 0 bytes, got ", bytes);
  vector_neurons::PagePool::instance().set_limit(bytes);
#endif
}

int64_t page_pool_bytes() {
#ifdef VN_PAGE_POOL
  return vector_neurons::PagePool::instance().bytes();
#else
  return 0;
#endif
}

}  // namespace

// Without a tensor among the arguments there is no device to dispatch on.
TORCH_LIBRARY_IMPL(vector_neurons, CompositeExplicitAutograd, m) {
  m.impl("set_page_pool_limit", &set_page_pool_limit);
  m.impl("page_pool_bytes", &page_pool_bytes);
}
