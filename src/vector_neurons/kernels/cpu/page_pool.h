// A pool of huge pages for large results. Linux maps fresh memory in small pages and zeroes each at first touch, which
// can take longer than computing the result, and torch's allocator maps large blocks afresh each time. The pool keeps
// freed blocks for reuse, in transparent huge pages, up to a limit that kernels/__init__.py sets at load.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

// AddressSanitizer guards the bounds of torch's allocations, not of the pool's.
#if defined(MADV_HUGEPAGE) && !defined(VN_SANITIZE)
#define VN_PAGE_POOL
#endif

namespace vector_neurons {

using at::Tensor;

#ifdef VN_PAGE_POOL

class PagePool {
 public:
  static constexpr size_t PAGE = 1 << 21;

  // Never destroyed: tensors may outlive static destructors.
  static PagePool& instance() {
    static PagePool* pool = new PagePool;
    return *pool;
  }

  bool enabled() const { return limit > 0; }

  // The block freed last that fits without wasting more than a quarter, otherwise a new one; null if out of memory.
  std::pair<void*, size_t> allocate(size_t bytes) {
    const size_t size = (bytes + PAGE - 1) / PAGE * PAGE;
    // try_lock: a process forked while another thread holds the lock would wait for ever.
    if (const std::unique_lock held(lock, std::try_to_lock); held)
      for (auto block = free_blocks.rbegin(); block != free_blocks.rend(); ++block)
        if (block->second >= size && block->second <= size + size / 4) {
          const auto found = *block;
          free_bytes -= found.second, free_blocks.erase(std::next(block).base());
          return found;
        }
    return {map(size), size};
  }

  void release(void* start, size_t size) {
    const std::unique_lock held(lock, std::try_to_lock);
    if (!held) {
      munmap(start, size);
      return;
    }
    free_blocks.emplace_back(start, size), free_bytes += size;
    trim();
  }

  // Bounds the bytes of free blocks; 0 turns the pool off.
  void set_limit(size_t bytes) {
    const std::lock_guard held(lock);
    limit = bytes;
    trim();
  }

  size_t bytes() {
    const std::lock_guard held(lock);
    return free_bytes;
  }

 private:
  // Unmaps the blocks freed first; with the lock held.
  void trim() {
    for (; free_bytes > limit; free_blocks.pop_front())
      free_bytes -= free_blocks.front().second, munmap(free_blocks.front().first, free_blocks.front().second);
  }

  static void* map(size_t size) {
    void* raw = mmap(nullptr, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    char* begin = static_cast<char*>(raw);
    const size_t misaligned = -reinterpret_cast<uintptr_t>(begin) % PAGE;
    if (misaligned) munmap(begin, misaligned);
    munmap(begin + misaligned + size, PAGE - misaligned);
    madvise(begin + misaligned, size, MADV_HUGEPAGE);
    return begin + misaligned;
  }

  std::mutex lock;
  std::deque<std::pair<void*, size_t>> free_blocks;  // in the order in which they were freed
  size_t free_bytes = 0;
  std::atomic<size_t> limit = 0;
};

#endif

// An uninitialized tensor, from the pool if it is large.
inline Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) {
#ifdef VN_PAGE_POOL
  PagePool& pool = PagePool::instance();
  const size_t bytes = c10::multiply_integers(sizes) * options.dtype().itemsize();
  if (bytes >= PagePool::PAGE && pool.enabled())
    if (const auto [start, size] = pool.allocate(bytes); start)
      return at::for_blob(start, sizes)
          .deleter([start = start, size = size](void*) { PagePool::instance().release(start, size); })
          .options(options)
          .resizeable_storage()
          .allocator(c10::GetAllocator(c10::kCPU))
          .make_tensor();
#endif
  return at::empty(sizes, options);
}

}  // namespace vector_neurons
