#include "worker/allocation_counter.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> g_counting{false};
std::atomic<int64_t> g_allocations{0};

void* Allocate(size_t size, size_t alignment) {
  if (g_counting.load(std::memory_order_relaxed)) ++g_allocations;
  void* memory = std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

// A file of its own, so that no caller is compiled against the bodies: GCC 12 takes a deletion by
// free() of what an inlined operator new returned for a mistake.
void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace switchyard::worker {

AllocationCounter::AllocationCounter() {
  g_allocations = 0;
  g_counting = true;
}
AllocationCounter::~AllocationCounter() { g_counting = false; }
int64_t AllocationCounter::count() const { return g_allocations; }

}  // namespace switchyard::worker
