// Working memory.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace workbench {

// Most arrays are written and read once or twice, so with small pages a tenth of the time would go into page faults.
inline void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kPage = 4096;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(memory) + bytes) / kPage * kPage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // only a hint
#endif
}

// Arrays for one call. Zeros, because layers never write the borders; new for each call, because calls may overlap and
// memory that is kept between them would be missing elsewhere.
class Arena {
 public:
  float* take(int64_t floats) {
    const size_t bytes = (floats + 16) * sizeof(float);
    held_.emplace_back(std::calloc(1, bytes));
    if (!held_.back()) throw std::bad_alloc();
    ask_for_large_pages(held_.back().get(), bytes);
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(held_.back().get()) + 63) / 64 * 64);
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<void, Free>> held_;
};

}  // namespace workbench
