// A team of threads that run the same program.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

namespace workbench {

constexpr int kMostThreads = 16;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int kAnyCore = -1;

inline int this_core() {
#ifdef __linux__
  return sched_getcpu();
#else
  return kAnyCore;
#endif
}

// The cores to use, one for each thread; the core of the calling thread comes first.
inline std::vector<int> cores_for_threads() {
  std::vector<int> cores;
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  std::rotate(cores.begin(), std::find(cores.begin(), cores.end(), this_core()), cores.end());
#endif
  if (cores.empty()) cores.assign(std::max(1u, std::thread::hardware_concurrency()), kAnyCore);
  const size_t wanted = std::min<size_t>(cores.size(), kMostThreads);
  // Spread over all cores: neighbouring ones may share execution units and caches.
  for (size_t index = 0; index < wanted; ++index) cores[index] = cores[index * cores.size() / wanted];
  cores.resize(wanted);
  return cores;
}

// A new thread starts on the core of its creator, and the scheduler may take longer to move it than the thread lives.
// So the thread moves itself to its core, and then allows the scheduler to move it again.
inline void move_to([[maybe_unused]] int core) {
#ifdef __linux__
  if (core == kAnyCore) return;
  cpu_set_t allowed, one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && sched_setaffinity(0, sizeof one, &one) == 0 &&
      sched_setaffinity(0, sizeof allowed, &allowed) != 0) {
    // Other cores are allowed by now: all that the system grants, because the thread must not stay on one.
    for (int other = 0; other < CPU_SETSIZE; ++other) CPU_SET(other, &allowed);
    sched_setaffinity(0, sizeof allowed, &allowed);
  }
#endif
}

// A barrier for the threads. A thread whose core is used by another program delays all others. If waiting takes more
// than half of their time, half of the threads would be faster, so only half continue. The results stay the same.
class Barrier {
 public:
  explicit Barrier(const std::vector<int>& cores) : start_(cores), now_(cores.size()) {
    for (size_t index = 0; index < cores.size(); ++index) now_[index].store(cores[index]);
  }
  int size() const { return size_.load(std::memory_order_relaxed); }
  void set_size(int size) { size_.store(size, std::memory_order_relaxed); }

  void wait(int index, bool is_end_of_step = false) {
    const int size = this->size();
    if (size == 1) return;
    if (const int core = this_core(); core != now_[index].load(std::memory_order_relaxed))
      now_[index].store(core, std::memory_order_relaxed);
    const int round = round_.load(std::memory_order_relaxed);
    const auto arrival = Clock::now();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      if (is_end_of_step) shrink_if_slow(size, arrival);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    spin_or_sleep(index, round, arrival);
    waited_.fetch_add((Clock::now() - arrival).count(), std::memory_order_relaxed);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // On a busy machine, a thread that yields its core gets it back only milliseconds later. So a thread yields only when
  // the thread it waits for has probably lost its core. Threads poll instead of being woken: the scheduler would place
  // a woken thread on the core of the thread that wakes it.
  void spin_or_sleep(int index, int round, Clock::time_point arrival) {
    do {
      for (int spins = 0; spins < 64; ++spins) {
        if (round_.load(std::memory_order_acquire) != round) return;
        relax();
      }
      if (shares_core(index)) {
        if (this_core() == start_[index]) break;  // the other thread needs this core in order to move away
        move_to(start_[index]);
      }
    } while (Clock::now() < arrival + std::chrono::microseconds(500));
    while (round_.load(std::memory_order_acquire) == round) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  // A sleeping thread may wake up on the core of another thread, and stay there for tens of milliseconds.
  bool shares_core(int index) const {
    const int core = this_core();
    for (int other = 0; other < size(); ++other)
      if (other != index && core != kAnyCore && now_[other].load(std::memory_order_relaxed) == core) return true;
    return false;
  }

  // Called only by the last thread to arrive. The first measurement is ignored: threads may still be changing cores.
  void shrink_if_slow(int size, Clock::time_point now) {
    const auto elapsed = now - since_;
    if (elapsed < std::chrono::milliseconds(is_settled_ ? 50 : 20)) return;
    const bool is_slow = 2 * waited_.load(std::memory_order_relaxed) > (size - 1) * elapsed.count();
    if (is_settled_ && is_slow) set_size(size / 2);
    is_settled_ = true;
    waited_.store(0, std::memory_order_relaxed);
    since_ = now;
  }

  const std::vector<int> start_;       // the core on which each thread starts
  std::vector<std::atomic<int>> now_;  // the core on which it was last seen
  bool is_settled_ = false;
  std::atomic<int> size_{1}, arrived_{0}, round_{0};
  std::atomic<int64_t> waited_{0};
  Clock::time_point since_ = Clock::now();
};

struct Team {
  int index, size;
  Barrier* barrier;
  void meet() const { barrier->wait(index); }
  // Called at the end of a local step; returns whether this thread is still needed.
  bool goes_on() {
    barrier->wait(index, true);
    size = barrier->size();
    return index < size;
  }
  bool is_first() const { return index == 0; }
  // This thread's part of some units of work, as [first, last).
  std::pair<int, int> part(int64_t units) const {
    return {static_cast<int>(units * index / size), static_cast<int>(units * (index + 1) / size)};
  }
  // In reverse order: what the previous pass used last is still in the cache.
  template <class Work>
  void each_backwards(int units, Work work) const {
    const auto [first, last] = part(units);
    for (int unit = last; unit-- > first;) work(unit);
  }
  template <class Work>
  void each(int units, Work work) const {
    const auto [first, last] = part(units);
    for (int unit = first; unit < last; ++unit) work(unit);
  }
};

template <class Program>
void run_team(const std::vector<int>& cores, Program program) {
  Barrier barrier(cores);
  std::atomic<int> size{0};  // set once all possible threads have been created
  std::vector<std::thread> others;
  others.reserve(cores.size());
  try {
    for (int index = 1; index < static_cast<int>(cores.size()); ++index)
      others.emplace_back([&, index] {
        size.wait(0);
        move_to(cores[index]);
        program(Team{index, size.load(), &barrier});
      });
  } catch (const std::system_error&) {
    // The limit of threads is reached; continue with those that exist.
  } catch (const std::bad_alloc&) {
    // There is no memory for another thread; continue with those that exist.
  }
  barrier.set_size(static_cast<int>(others.size()) + 1);
  size.store(barrier.size());
  size.notify_all();
  program(Team{0, size.load(), &barrier});
  for (auto& other : others) other.join();
}

}  // namespace workbench
