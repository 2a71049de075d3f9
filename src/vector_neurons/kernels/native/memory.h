// Memory for large results. Linux hands out new memory in small pages and fills it with zeros at first touch, which can
// take longer than the result; torch asks for new memory each time. Here large blocks are kept to be used again, and
// consist of large pages.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <deque>
#include <mutex>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

// A sanitizer watches the borders of torch's memory, not of ours.
#if defined(MADV_HUGEPAGE) && !defined(VN_SANITIZE)
#define VN_KEEPS_BLOCKS
#endif

namespace vector_neurons {

using at::Tensor;

#ifdef VN_KEEPS_BLOCKS

class Blocks {
 public:
  static constexpr size_t PAGE = 1 << 21;
  static constexpr size_t KEEP = 1 << 29;  // bytes of blocks that nobody uses, at most

  // Lives as long as any tensor might.
  static Blocks& all() {
    static Blocks* blocks = new Blocks;
    return *blocks;
  }

  // The last that was given back and is not much too large; or a new one. Null, if there is no memory.
  std::pair<void*, size_t> take(size_t wanted) {
    const size_t size = (wanted + PAGE - 1) / PAGE * PAGE;
    // Whoever finds it locked goes without: in a process forked at that moment it stays so for ever.
    if (const std::unique_lock held(lock, std::try_to_lock); held)
      for (auto block = kept.rbegin(); block != kept.rend(); ++block)
        if (block->second >= size && block->second <= size + size / 4) {
          const auto found = *block;
          bytes -= found.second, kept.erase(std::next(block).base());
          return found;
        }
    return {create(size), size};
  }

  void give_back(void* start, size_t size) {
    const std::unique_lock held(lock, std::try_to_lock);
    if (!held) {
      munmap(start, size);
      return;
    }
    kept.emplace_back(start, size), bytes += size;
    for (; bytes > KEEP; kept.pop_front())
      bytes -= kept.front().second, munmap(kept.front().first, kept.front().second);
  }

 private:
  static void* create(size_t size) {
    void* raw = mmap(nullptr, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return nullptr;
    char* begin = static_cast<char*>(raw);
    const size_t skipped = -reinterpret_cast<uintptr_t>(begin) % PAGE;
    if (skipped) munmap(begin, skipped);
    munmap(begin + skipped + size, PAGE - skipped);
    madvise(begin + skipped, size, MADV_HUGEPAGE);
    return begin + skipped;
  }

  std::mutex lock;
  std::deque<std::pair<void*, size_t>> kept;  // the last that was given back is the last
  size_t bytes = 0;
};

#endif

// An uninitialised tensor.
inline Tensor fresh(at::IntArrayRef sizes, const at::TensorOptions& options) {
#ifdef VN_KEEPS_BLOCKS
  const size_t wanted = c10::multiply_integers(sizes) * options.dtype().itemsize();
  if (wanted >= Blocks::PAGE)
    if (const auto [start, size] = Blocks::all().take(wanted); start)
      return at::for_blob(start, sizes)
          .deleter([start = start, size = size](void*) { Blocks::all().give_back(start, size); })
          .options(options)
          .resizeable_storage()
          .allocator(c10::GetAllocator(c10::kCPU))
          .make_tensor();
#endif
  return at::empty(sizes, options);
}

}  // namespace vector_neurons
