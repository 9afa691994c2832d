// Local training and the way back through it, for networks that are chains of layers: what `workbench.chain` and
// `workbench.training` say in JAX, written out for CPUs. The client's local steps are small and wait for each other, so
// what counts is not the arithmetic but everything around it. Here
//
// - all S steps are one call; threads meet at a barrier between the layers, a few hundred nanoseconds each;
// - a convolution with a kernel of 3 x 3 is done in tiles of 2 x 2 pixels, with fewer than half of the multiplications;
// - ReLU and pooling are done while a convolution's results are still in the cache;
// - a dense kernel is kept in panels of 64 inputs, each of which stays with one thread, and the way back takes its
//   updates back one by one instead of keeping every version of it;
// - threads divide results between them, never the terms of a sum: the numbers do not depend on how many there are.
//
// Every product is one function, `tile`: some rows of `a`, as scalars, times two vectors of `b`, summed in registers.
//
// Letters: S steps, M images, H, W, C as everywhere; F channels out; K inputs and O outputs of a dense layer.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sched.h>
#include <sys/mman.h>
#endif
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 14, kDot = 5;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRows = 6, kDot = 3;
#else
constexpr int kLanes = 4, kRows = 6, kDot = 3;
#endif
constexpr int kPanel = 64;       // inputs of a dense layer that lie together
constexpr int kChunks = 8;       // parts of a long sum, added in the same order whoever computed them
constexpr int kMostThreads = 16;

typedef float Vec __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef int32_t IntVec __attribute__((vector_size(4 * kLanes)));
typedef std::conditional_t<kLanes == 16, uint16_t, uint8_t> Bits;  // one for each number of a vector

inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<Vec*>(to) = value; }

// Where numbers are positive, and a vector with zeros elsewhere; compilers do not find the instructions by themselves.
#if defined(__AVX512F__)
inline Bits positive(Vec value) { return _mm512_cmp_ps_mask(__m512(value), _mm512_setzero_ps(), _CMP_GT_OQ); }
inline Vec only(Vec value, Bits bits) { return Vec(_mm512_maskz_mov_ps(bits, __m512(value))); }
inline float sum_of(Vec value) { return _mm512_reduce_add_ps(__m512(value)); }
#else
inline Bits positive(Vec value) {
  Bits bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= (value[lane] > 0.0f) << lane;
  return bits;
}
inline Vec only(Vec value, Bits bits) {
  IntVec lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = 1 << lane;
  return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(value) & ((lanes & int32_t(bits)) != 0));
}
inline float sum_of(Vec value) {
  float parts[kLanes];
  store(parts, value);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  return parts[0];
}
#endif

// kLanes vectors as the rows of a square, to its columns.
template <int... kIndex>
inline void transpose(const Vec* rows, Vec* columns, std::integer_sequence<int, kIndex...>) {
  Vec from[kLanes], to[kLanes];
  std::copy(rows, rows + kLanes, from);
#pragma GCC unroll 4
  for (int width = 1; width < kLanes; width *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      const Vec first = from[i], second = from[i + kLanes / 2];
      to[2 * i] = __builtin_shufflevector(first, second, (kIndex / 2 + kIndex % 2 * kLanes)...);
      to[2 * i + 1] = __builtin_shufflevector(first, second, (kIndex / 2 + kIndex % 2 * kLanes + kLanes / 2)...);
    }
    std::copy(to, to + kLanes, from);
  }
  std::copy(to, to + kLanes, columns);
}

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// ---------------------------------------------------------------------------------------------------------------------
// Threads that go through the same program together
// ---------------------------------------------------------------------------------------------------------------------

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Where threads wait for each other. A thread whose core another program has keeps all others waiting; where the wait
// takes more than half of their time, half of the threads would be faster, and go on alone. The numbers stay the same.
class Barrier {
 public:
  int size() const { return size_.load(std::memory_order_relaxed); }
  void set_size(int size) { size_.store(size, std::memory_order_relaxed); }

  void wait(bool is_end_of_step = false) {
    const int size = this->size();
    if (size == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    const auto arrival = Clock::now();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      if (is_end_of_step) judge(size, arrival);
      round_.store(round + 1);
      round_.notify_all();
      return;
    }
    spin_or_sleep(round, arrival);
    waited_.fetch_add((Clock::now() - arrival).count(), std::memory_order_relaxed);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Who gives a core away gets it back milliseconds later where others want it, so that is done only when the thread
  // that is waited for must have lost its own.
  void spin_or_sleep(int round, Clock::time_point arrival) {
    do {
      for (int spins = 0; spins < 64; ++spins) {
        if (round_.load(std::memory_order_acquire) != round) return;
        relax();
      }
    } while (Clock::now() < arrival + std::chrono::microseconds(500));
    round_.wait(round, std::memory_order_acquire);
  }

  // Only the last to arrive is here. Until the threads have found their cores, it says nothing of those.
  void judge(int size, Clock::time_point now) {
    const auto elapsed = now - since_;
    if (elapsed < std::chrono::milliseconds(is_settled_ ? 50 : 20)) return;
    const bool is_slow = 2 * waited_.load(std::memory_order_relaxed) > (size - 1) * elapsed.count();
    if (is_settled_ && is_slow) set_size(size / 2);
    is_settled_ = true;
    waited_.store(0, std::memory_order_relaxed);
    since_ = now;
  }

  bool is_settled_ = false;
  std::atomic<int> size_{1}, arrived_{0}, round_{0};
  std::atomic<int64_t> waited_{0};
  Clock::time_point since_ = Clock::now();
};

struct Team {
  int index, size;
  Barrier* barrier;
  void meet() const { barrier->wait(); }
  // The end of a local step: whether this thread is still needed.
  bool goes_on() {
    barrier->wait(true);
    size = barrier->size();
    return index < size;
  }
  bool is_first() const { return index == 0; }
  // This thread's part of some units of work, as [first, last).
  std::pair<int, int> part(int64_t units) const {
    return {static_cast<int>(units * index / size), static_cast<int>(units * (index + 1) / size)};
  }
  // In the opposite order, what the last pass touched last is still in the cache.
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

int num_threads() {
  int count = static_cast<int>(std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) count = CPU_COUNT(&allowed);
#endif
  return std::clamp(count, 1, kMostThreads);
}

template <class Program>
void together(Program program) {
  Barrier barrier;
  std::atomic<int> size{0};  // known once it is clear how many threads there can be
  std::vector<std::thread> others;
  const int wanted = num_threads();
  others.reserve(wanted);
  try {
    for (int index = 1; index < wanted; ++index)
      others.emplace_back([&, index] {
        size.wait(0);
        program(Team{index, size.load(), &barrier});
      });
  } catch (const std::system_error&) {
    // This user has no more threads; those that are there will do.
  }
  barrier.set_size(static_cast<int>(others.size()) + 1);
  size.store(barrier.size());
  size.notify_all();
  program(Team{0, size.load(), &barrier});
  for (auto& other : others) other.join();
}

// ---------------------------------------------------------------------------------------------------------------------
// The one product
// ---------------------------------------------------------------------------------------------------------------------

// One stretch of a sum: `length` scalars of each row of a, and as many vectors of b.
struct Run {
  const float* a;
  const float* b;
};

struct Strides {
  int64_t a_row, a_step, b_step;
};

template <int kTileRows, int kVectors, class Finish>
__attribute__((noinline)) void tile_of(const Run* runs, int num_runs, int length, Strides by, Finish finish) {
  Vec sums[kTileRows][kVectors] = {};
  for (int run = 0; run < num_runs; ++run) {
    const float* a = runs[run].a;
    const float* b = runs[run].b;
    for (int i = 0; i < length; ++i, a += by.a_step, b += by.b_step) {
      Vec right[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 16
      for (int row = 0; row < kTileRows; ++row) {
        const float left = a[row * by.a_row];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[row][v] += left * right[v];
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kTileRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) finish(row, v * kLanes, sums[row][v]);
}

// A number of 1 to kMost as a constant: work(constant).
template <int kMost, class Work>
inline void with_count(int count, Work work) {
  if constexpr (kMost > 1)
    if (count < kMost) return with_count<kMost - 1>(count, work);
  work(std::integral_constant<int, kMost>{});
}

template <int kVectors, int kMostRows = kRows, class Finish>
void tile(int rows, const Run* runs, int num_runs, int length, Strides by, Finish finish) {
  with_count<kMostRows>(rows, [&](auto count) {
    tile_of<decltype(count)::value, kVectors>(runs, num_runs, length, by, finish);
  });
}

// `rows` rows in blocks of about the same size, each at most kMost: (first row, number of rows) of one, or work(both).
template <int kMost = kRows>
int num_blocks(int rows) {
  return (rows + kMost - 1) / kMost;
}
template <int kMost = kRows>
std::pair<int, int> block_of(int rows, int block) {
  const int64_t blocks = num_blocks<kMost>(rows), first = int64_t(rows) * block / blocks;
  return {static_cast<int>(first), static_cast<int>(int64_t(rows) * (block + 1) / blocks - first)};
}
template <int kMost = kRows, class Work>
void in_blocks(int rows, Work work) {
  for (int block = 0; block < num_blocks<kMost>(rows); ++block) {
    const auto [first, count] = block_of<kMost>(rows, block);
    work(first, count);
  }
}

// Channels in chunks of two vectors, or of one where they do not divide.
int vectors_of(int channels) { return channels % (2 * kLanes) == 0 ? 2 : 1; }
template <class Work>
void with_vectors(int channels, Work work) {
  if (vectors_of(channels) == 2)
    work(std::integral_constant<int, 2>{});
  else
    work(std::integral_constant<int, 1>{});
}

// ---------------------------------------------------------------------------------------------------------------------
// Layers, and where their numbers lie
// ---------------------------------------------------------------------------------------------------------------------

// M pictures with a border of zeros.
struct Grid {
  int height, width, channels, border;
  int64_t row, image;
  Grid() = default;
  Grid(int height, int width, int channels, int border, int64_t unit = 1)
      : height(height), width(width), channels(channels), border(border), row(int64_t(width + 2 * border) * channels),
        image(round_up((height + 2 * border) * row, unit)) {}
  int64_t at(int m, int y, int x) const { return m * image + (y + border) * row + int64_t(x + border) * channels; }
};

struct Layer {
  bool is_dense, relu, pool;
  int size, padding, channels, filters;  // of a convolution
  int out_height, out_width;             // of it, before pooling
  int after_height, after_width;         // after pooling
  int inputs, outputs, panels, chunks;   // of a dense layer
  bool by_tiles;                         // a convolution as in the section on tiles
  Grid in;                               // its input
  Grid out;                              // the gradient at a convolution's output, with the border its transpose needs
  int shift;                             // of the transpose: where it begins in that border
  int64_t kernel_numbers, bias_numbers;
  // Where a step's slot of the trajectory has them, in floats.
  int64_t kernel_at, active_at, input_at, gradient_at;

  int num_parts() const { return is_dense || channels >= kLanes ? 1 : 4; }  // of the sums of a kernel gradient
  int num_tiles() const { return out_height / 2 * (out_width / 2); }           // of an image
  // Where the ReLU of a convolution has noted whether it lets through a vector of channels.
  int64_t active(int m, int y, int x, int filter) const {
    return (((int64_t(m) * out_height + y) * out_width + x) * filters + filter) / kLanes;
  }
  int64_t padded_inputs() const { return int64_t(panels) * kPanel; }
};

struct Chain {
  int images;  // M
  std::vector<Layer> layers;
  int64_t slot;  // floats kept of a step
  int64_t logit_gradient_at, probabilities_at;
  int classes;
};

// Each layer as (is dense, k or K, padding, C, F or O, ReLU, pooling), after (H, W, C) of an image.
Chain make_chain(const int64_t* numbers, int64_t count, int images) {
  Chain chain{images, {}, 0, 0, 0, 0};
  int height = numbers[0], width = numbers[1], channels = numbers[2];
  const auto take = [&](int64_t floats) {
    const int64_t at = chain.slot;
    chain.slot += round_up(floats, 16);
    return at;
  };
  for (const int64_t* n = numbers + 3; n < numbers + count; n += 7) {
    Layer l{};
    l.is_dense = n[0];
    l.relu = n[5];
    l.pool = n[6];
    if (l.is_dense) {
      l.inputs = n[1];
      l.outputs = n[4];
      l.panels = (l.inputs + kPanel - 1) / kPanel;
      l.chunks = std::min(kChunks, l.panels);
      l.in = Grid(height, width, channels, 0, kPanel);
      l.kernel_numbers = l.padded_inputs() * l.outputs;
      l.bias_numbers = l.outputs;
      height = width = 1;
      channels = l.outputs;
    } else {
      l.size = n[1];
      l.padding = n[2];
      l.channels = n[3];
      l.filters = n[4];
      l.in = Grid(height, width, channels, l.padding);
      l.out_height = height + 2 * l.padding - l.size + 1;
      l.out_width = width + 2 * l.padding - l.size + 1;
      l.by_tiles = !chain.layers.empty() && l.size == 3 && l.out_height % 2 == 0 && l.out_width % 2 == 0;
      const int border = l.size - 1 - l.padding;
      l.out = Grid(l.out_height, l.out_width, l.filters, std::max(0, border));
      l.shift = l.out.border - border;
      l.kernel_numbers = int64_t(l.size) * l.size * l.channels * l.filters;
      l.bias_numbers = l.filters;
      l.after_height = height = l.pool ? l.out_height / 2 : l.out_height;
      l.after_width = width = l.pool ? l.out_width / 2 : l.out_width;
      channels = l.filters;
      l.kernel_at = take(l.kernel_numbers);
      l.active_at = take((l.active(images, 0, 0, 0) * sizeof(Bits) + 3) / 4);
    }
    if (!chain.layers.empty()) {
      l.input_at = take(images * l.in.image);
      l.gradient_at = take(images * l.in.image);
    }
    chain.layers.push_back(l);
  }
  chain.classes = channels;
  chain.logit_gradient_at = take(int64_t(images) * channels);
  chain.probabilities_at = take(int64_t(images) * channels);
  return chain;
}

// The weights of a layer while they are worked with: kernel (or panels), then bias.
struct Numbers {
  float* kernel;
  float* bias;
};

// Arrays that live as long as a call; zeros at first, so that borders need no more care.
class Arena {
 public:
  float* take(int64_t floats) {
    held_.emplace_back(floats + 16, 0.0f);
    const auto address = reinterpret_cast<uintptr_t>(held_.back().data());
    return reinterpret_cast<float*>((address + 63) / 64 * 64);
  }

 private:
  std::vector<std::vector<float>> held_;
};

void clear_border(const Grid& grid, float* pictures, int m) {
  float* picture = pictures + m * grid.image;
  const int64_t side = int64_t(grid.border) * grid.channels;
  const int64_t end = (grid.height + 2 * grid.border) * grid.row;
  if (side) {
    std::fill(picture, picture + grid.border * grid.row, 0.0f);
    std::fill(picture + (grid.height + grid.border) * grid.row, picture + end, 0.0f);
    for (int y = 0; y < grid.height; ++y) {
      float* row = picture + (y + grid.border) * grid.row;
      std::fill(row, row + side, 0.0f);
      std::fill(row + grid.row - side, row + grid.row, 0.0f);
    }
  }
  std::fill(picture + end, picture + grid.image, 0.0f);
}

void copy_images(const Grid& grid, const float* from, float* to, int m) {
  const int64_t line = int64_t(grid.width) * grid.channels;
  for (int y = 0; y < grid.height; ++y)
    std::memcpy(to + grid.at(m, y, 0), from + (int64_t(m) * grid.height + y) * line, line * sizeof(float));
}

// ---------------------------------------------------------------------------------------------------------------------
// Convolutions
// ---------------------------------------------------------------------------------------------------------------------

// One term of a sum of products: inputs with a kernel, or inputs with an output's gradient.
struct Term {
  const float* inputs;
  const float* other;
};

constexpr int kMostRuns = 2 * 32;  // two terms, kernels of up to 32 rows

// One row of a convolution: kVectors vectors of channels from `filter` on, for `width` pixels, to out[x * out_step].
template <int kVectors>
void convolve_row(const Term* terms, int num_terms, const Grid& in, int first_y, int first_x, int size, int filters,
                  int m, int filter, int width, float* out, int64_t out_step) {
  in_blocks(width, [&](int x, int count) {
    Run runs[kMostRuns];
    int num_runs = 0;
    for (int term = 0; term < num_terms; ++term)
      for (int row = 0; row < size; ++row)
        runs[num_runs++] = {
            terms[term].inputs + m * in.image + (first_y + row) * in.row + int64_t(first_x + x) * in.channels,
            terms[term].other + int64_t(row) * size * in.channels * filters + filter};
    tile<kVectors>(count, runs, num_runs, size * in.channels, {in.channels, 1, filters},
                   [&](int pixel, int lane, Vec value) { store(out + (x + pixel) * out_step + lane, value); });
  });
}

// ReLU. Where it lets through is written down on the way there (`is_derivative` false), and read on the way back.
template <bool is_derivative>
inline Vec activated(Vec value, Bits& active) {
  if constexpr (!is_derivative) active = positive(value);
  return only(value, active);
}

// A row after pooling, or one row without: convolution, bias, ReLU, pooling.
template <int kVectors, bool is_derivative>
void activated_row(const Layer& l, const Term* terms, int num_terms, const float* bias, Bits* active,
                   const Grid& next, float* out, float* rows, int m, int y, int filter) {
  constexpr int kWidth = kVectors * kLanes;
  const int num_rows = l.pool ? 2 : 1;
  for (int r = 0; r < num_rows; ++r) {
    const int out_y = num_rows * y + r;
    float* row = rows + int64_t(r) * l.out_width * kWidth;
    convolve_row<kVectors>(terms, num_terms, l.in, out_y, 0, l.size, l.filters, m, filter, l.out_width, row, kWidth);
    for (int x = 0; x < l.out_width; ++x)
      for (int lane = 0; lane < kWidth; lane += kLanes) {
        const Vec value = load(row + x * kWidth + lane) + load(bias + filter + lane);
        store(row + x * kWidth + lane, activated<is_derivative>(value, active[l.active(m, out_y, x, filter + lane)]));
      }
  }
  const float* below = rows + int64_t(l.out_width) * kWidth;
  for (int x = 0; x < l.after_width; ++x)
    for (int lane = 0; lane < kWidth; lane += kLanes) {
      const float* from = rows + int64_t(num_rows) * x * kWidth + lane;
      Vec value = load(from);
      if (l.pool) {
        const float* under = below + int64_t(2) * x * kWidth + lane;
        value = 0.25f * (value + load(from + kWidth) + load(under) + load(under + kWidth));
      }
      store(out + next.at(m, y, x) + filter + lane, value);
    }
}

template <bool is_derivative>
void convolution_layer(const Team& team, const Chain& chain, int index, const Term* terms, int num_terms,
                       const float* bias, Bits* active, float* out, float* rows) {
  const Layer& l = chain.layers[index];
  const Grid& next = chain.layers[index + 1].in;
  with_vectors(l.filters, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    const int parts = l.filters / (kVectors * kLanes);
    team.each(chain.images * l.after_height * parts, [&](int unit) {
      const int line = unit / parts;
      activated_row<kVectors, is_derivative>(l, terms, num_terms, bias, active, next, out, rows, line / l.after_height,
                                             line % l.after_height, unit % parts * kVectors * kLanes);
    });
  });
}

// The gradient at a convolution's output, from that after pooling.
template <int kStep>
void spread_by(const Team& team, const Chain& chain, const Layer& l, const Grid& next, const float* gradient,
               const Bits* active, float* out) {
  constexpr float kShare = 1.0f / (kStep * kStep);
  team.each(chain.images * l.after_height, [&](int unit) {
    const int m = unit / l.after_height, y = unit % l.after_height;
    for (int x = 0; x < l.after_width; ++x)
      for (int lane = 0; lane < l.filters; lane += kLanes) {
        const Vec value = kShare * load(gradient + next.at(m, y, x) + lane);
        for (int row = kStep * y; row < kStep * (y + 1); ++row)
          for (int column = kStep * x; column < kStep * (x + 1); ++column)
            store(out + l.out.at(m, row, column) + lane, only(value, active[l.active(m, row, column, lane)]));
      }
  });
}

void spread_gradient(const Team& team, const Chain& chain, int index, const float* gradient, const Bits* active, float* out) {
  const Layer& l = chain.layers[index];
  const Grid& next = chain.layers[index + 1].in;
  if (l.pool)
    spread_by<2>(team, chain, l, next, gradient, active, out);
  else
    spread_by<1>(team, chain, l, next, gradient, active, out);
}

// [k, k, C, F] to [k, k, F, C], turned round: the kernel of the transpose.
void turn_kernel(const Team& team, const Layer& l, const float* kernel, float* turned) {
  const int offsets = l.size * l.size;
  team.each(offsets, [&](int unit) {
    const float* from = kernel + int64_t(offsets - 1 - unit) * l.channels * l.filters;
    float* to = turned + int64_t(unit) * l.channels * l.filters;
    for (int c = 0; c < l.channels; c += kLanes)
      for (int f = 0; f < l.filters; ++f)
        for (int lane = 0; lane < kLanes; ++lane)
          to[int64_t(f) * l.channels + c + lane] = from[int64_t(c + lane) * l.filters + f];
  });
}

// The gradient of a convolution's input: a convolution of the spread gradient with the turned kernel.
void input_gradient(const Team& team, const Chain& chain, int index, const Term* terms, int num_terms, float* out) {
  const Layer& l = chain.layers[index];
  with_vectors(l.channels, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    const int parts = l.channels / (kVectors * kLanes);
    team.each(chain.images * l.in.height * parts, [&](int unit) {
      const int line = unit / parts, m = line / l.in.height, y = line % l.in.height;
      const int channel = unit % parts * kVectors * kLanes;
      convolve_row<kVectors>(terms, num_terms, l.out, y + l.shift, l.shift, l.size, l.channels, m, channel, l.in.width,
                             out + l.in.at(m, y, 0) + channel, l.channels);
    });
  });
}

// The same for a few channels, with the kernel as it is: sums over vectors of F. Goes to images without a border, times
// `scale`.
template <int kPixels>
void image_pixels(const Layer& l, const Term* terms, int num_terms, int m, int y, int x, int c, float scale, float* out) {
  Vec sums[kPixels] = {};
  for (int term = 0; term < num_terms; ++term)
    for (int row = 0; row < l.size; ++row) {
      const float* from = terms[term].inputs + m * l.out.image + (y + l.shift + row) * l.out.row +
                          int64_t(x + l.shift) * l.filters;
      // The kernel is turned round by going through it backwards.
      const float* kernel = terms[term].other + (int64_t(l.size - row) * l.size * l.channels - l.channels + c) * l.filters;
      for (int column = 0; column < l.size; ++column, from += l.filters, kernel -= l.channels * l.filters)
        for (int f = 0; f < l.filters; f += kLanes) {
          const Vec weight = load(kernel + f);
#pragma GCC unroll 8
          for (int pixel = 0; pixel < kPixels; ++pixel) sums[pixel] += weight * load(from + int64_t(pixel) * l.filters + f);
        }
    }
#pragma GCC unroll 8
  for (int pixel = 0; pixel < kPixels; ++pixel) out[int64_t(pixel) * l.channels] = scale * sum_of(sums[pixel]);
}

void image_gradient(const Team& team, const Chain& chain, const Term* terms, int num_terms, float scale, float* out) {
  constexpr int kPixels = 8;
  const Layer& l = chain.layers[0];
  team.each(chain.images * l.in.height, [&](int unit) {
    const int m = unit / l.in.height, y = unit % l.in.height;
    in_blocks<kPixels>(l.in.width, [&](int x, int count) {
      with_count<kPixels>(count, [&](auto pixels) {
        for (int c = 0; c < l.channels; ++c)
          image_pixels<decltype(pixels)::value>(l, terms, num_terms, m, y, x, c, scale,
                                                out + (int64_t(unit) * l.in.width + x) * l.channels + c);
      });
    });
  });
}

// The gradients of a convolution's kernel and bias, in num_parts() parts that `descend_parts` adds up.
void kernel_gradient(const Team& team, const Chain& chain, int index, const Term* terms, int num_terms,
                     const float* bias_gradient_of, float* out, Run* runs) {
  static const float one = 1.0f;
  const Layer& l = chain.layers[index];
  const int run_rows = l.size * l.channels;  // of the kernel, that lie together in a row of the input
  const int blocks = num_blocks(run_rows), parts = l.num_parts(), lines = chain.images * l.out_height;
  const int64_t part_numbers = l.kernel_numbers + l.bias_numbers;
  with_vectors(l.filters, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    const int chunks = l.filters / (kVectors * kLanes), rows = l.size * blocks + 1;  // one more for the bias
    team.each(parts * rows * chunks, [&](int unit) {
      // A thread's own channels first: its half of the gradient stays in its cache.
      const int filter = unit / (parts * rows) * kVectors * kLanes, part = unit / rows % parts, row = unit % rows;
      const int first_line = lines * part / parts, last_line = lines * (part + 1) / parts;
      const bool is_bias = row == l.size * blocks;
      const int kernel_row = row / blocks, block = row % blocks;
      const int first = is_bias ? 0 : run_rows * block / blocks;
      const int count = is_bias ? 1 : run_rows * (block + 1) / blocks - first;
      int num_runs = 0;
      for (int term = 0; term < (is_bias ? 1 : num_terms); ++term)
        for (int line = first_line; line < last_line; ++line) {
          const int m = line / l.out_height, y = line % l.out_height;
          const float* gradient = (is_bias ? bias_gradient_of : terms[term].other) + l.out.at(m, y, 0) + filter;
          runs[num_runs++] = {
              is_bias ? &one : terms[term].inputs + m * l.in.image + (y + kernel_row) * l.in.row + first, gradient};
        }
      float* to = out + part * part_numbers + filter +
                  (is_bias ? l.kernel_numbers : (int64_t(kernel_row) * run_rows + first) * l.filters);
      tile<kVectors>(count, runs, num_runs, l.out_width, {is_bias ? 0 : 1, is_bias ? 0 : l.channels, l.filters},
                     [&](int r, int lane, Vec value) { store(to + int64_t(r) * l.filters + lane, value); });
    });
  });
}

// numbers -= rate * gradient, for a convolution's kernel and bias, which lie behind each other.
void descend_parts(const Team& team, const Layer& l, const float* gradient, float rate, float* numbers) {
  const int64_t total = l.kernel_numbers + l.bias_numbers;
  const int parts = l.num_parts();
  team.each(static_cast<int>(total / kLanes), [&](int unit) {
    const int64_t at = int64_t(unit) * kLanes;
    Vec sum = load(gradient + at);
    for (int part = 1; part < parts; ++part) sum += load(gradient + part * total + at);
    store(numbers + at, load(numbers + at) - rate * sum);
  });
}

// ---------------------------------------------------------------------------------------------------------------------
// Convolutions with kernels of 3 x 3, in tiles of 2 x 2 pixels (Winograd's F(2 x 2, 3 x 3))
// ---------------------------------------------------------------------------------------------------------------------

// A tile of outputs sees 4 x 4 inputs: 36 products for each pair of channels. With x, w and y written in another basis,
// as 4 x 4 numbers each, it is 16: y = A' ((G w G') * (B' x B)) A. All three maps are linear, so that their transposes
// lead to the gradients, with the same 16 products: dw = G' ((B' x B) * (A dy A')) G, dx = B ((G w G') * (A dy A')) B'.
// Here 16 matrices lie behind each other: [16, tiles, C] for inputs, [16, tiles, F] for outputs, [16, C, F] for kernels.
constexpr int kBasis = 16;
int64_t matrix_step(int64_t rows, int64_t columns) { return rows * columns + 16; }  // never a multiple of a page

// Maps on one axis, of one vector of channels at a time.
struct InputToBasis {
  static constexpr int kFrom = 4, kTo = 4;
  static void map(const Vec* x, Vec* v) { v[0] = x[0] - x[2], v[1] = x[1] + x[2], v[2] = x[2] - x[1], v[3] = x[1] - x[3]; }
};
struct InputFromBasis {
  static constexpr int kFrom = 4, kTo = 4;
  static void map(const Vec* v, Vec* x) {
    x[0] = v[0], x[1] = v[1] - v[2] + v[3], x[2] = v[1] + v[2] - v[0], x[3] = -v[3];
  }
};
struct OutputToBasis {
  static constexpr int kFrom = 2, kTo = 4;
  static void map(const Vec* y, Vec* v) { v[0] = y[0], v[1] = y[0] + y[1], v[2] = y[0] - y[1], v[3] = -y[1]; }
};
struct OutputFromBasis {
  static constexpr int kFrom = 4, kTo = 2;
  static void map(const Vec* v, Vec* y) { y[0] = v[0] + v[1] + v[2], y[1] = v[1] - v[2] - v[3]; }
};
struct KernelToBasis {
  static constexpr int kFrom = 3, kTo = 4;
  static void map(const Vec* w, Vec* v) {
    const Vec outer = 0.5f * (w[0] + w[2]), middle = 0.5f * w[1];
    v[0] = w[0], v[1] = outer + middle, v[2] = outer - middle, v[3] = w[2];
  }
};
struct KernelFromBasis {
  static constexpr int kFrom = 4, kTo = 3;
  static void map(const Vec* v, Vec* w) {
    const Vec outer = 0.5f * (v[1] + v[2]);
    w[0] = v[0] + outer, w[1] = 0.5f * (v[1] - v[2]), w[2] = outer + v[3];
  }
};

// One of them on both axes: get(row, column) to put(row, column, value).
template <class Axis, class Get, class Put>
inline __attribute__((always_inline)) void on_both_axes(Get get, Put put) {
  Vec half[Axis::kTo][Axis::kFrom];
#pragma GCC unroll 4
  for (int column = 0; column < Axis::kFrom; ++column) {
    Vec from[Axis::kFrom], to[Axis::kTo];
#pragma GCC unroll 4
    for (int row = 0; row < Axis::kFrom; ++row) from[row] = get(row, column);
    Axis::map(from, to);
#pragma GCC unroll 4
    for (int row = 0; row < Axis::kTo; ++row) half[row][column] = to[row];
  }
#pragma GCC unroll 4
  for (int row = 0; row < Axis::kTo; ++row) {
    Vec to[Axis::kTo];
    Axis::map(half[row], to);
#pragma GCC unroll 4
    for (int column = 0; column < Axis::kTo; ++column) put(row, column, to[column]);
  }
}

struct Tile {
  int m, y, x;  // the image, and where in the grid of its tiles
  Tile(const Layer& l, int index)
      : m(index / l.num_tiles()), y(index % l.num_tiles() / (l.out_width / 2)), x(index % (l.out_width / 2)) {}
};

// Some tiles of the input.
void tiles_of_input(const Layer& l, int images, const float* in, int first, int count, float* out) {
  const int64_t step = matrix_step(int64_t(images) * l.num_tiles(), l.channels);
  for (int index = first; index < first + count; ++index) {
    const Tile tile(l, index);
    const float* from = in + tile.m * l.in.image + 2 * tile.y * l.in.row + 2 * tile.x * l.channels;
    float* to = out + int64_t(index) * l.channels;
    for (int c = 0; c < l.channels; c += kLanes)
      on_both_axes<InputToBasis>(
          [&](int row, int column) { return load(from + row * l.in.row + column * l.channels + c); },
          [&](int row, int column, Vec value) { store(to + (4 * row + column) * step + c, value); });
  }
}

// The gradient at the convolution's output, from that after ReLU and pooling.
void tiles_of_gradient(const Team& team, const Chain& chain, int index, const float* gradient, const Bits* active,
                       float* out) {
  const Layer& l = chain.layers[index];
  const Grid& next = chain.layers[index + 1].in;
  const int tiles = chain.images * l.num_tiles();
  const int64_t step = matrix_step(tiles, l.filters);
  team.each(tiles, [&](int unit) {
    const Tile tile(l, unit);
    float* to = out + int64_t(unit) * l.filters;
    for (int f = 0; f < l.filters; f += kLanes)
      on_both_axes<OutputToBasis>(
          [&](int row, int column) {
            const int y = 2 * tile.y + row, x = 2 * tile.x + column;
            const Vec value = l.pool ? 0.25f * load(gradient + next.at(tile.m, tile.y, tile.x) + f)
                                     : load(gradient + next.at(tile.m, y, x) + f);
            return only(value, active[l.active(tile.m, y, x, f)]);
          },
          [&](int row, int column, Vec value) { store(to + (4 * row + column) * step + f, value); });
  });
}

// [3, 3, C, F] to [16, C, F], and to [16, F, C].
void kernel_to_basis(const Team& team, const Layer& l, const float* kernel, float* straight, float* transposed) {
  const int64_t numbers = int64_t(l.channels) * l.filters, step = matrix_step(l.channels, l.filters);
  const int squares = l.filters / kLanes;
  team.each(l.channels / kLanes * squares, [&](int unit) {
    const int first_c = unit / squares * kLanes, first_f = unit % squares * kLanes;
    Vec rows[9][kLanes], columns[9][kLanes];
    for (int offset = 0; offset < 9; ++offset) {
      const float* from = kernel + offset * numbers + int64_t(first_c) * l.filters + first_f;
      for (int c = 0; c < kLanes; ++c) rows[offset][c] = load(from + int64_t(c) * l.filters);
      transpose(rows[offset], columns[offset], std::make_integer_sequence<int, kLanes>{});
    }
    const auto transform = [&](const Vec(*from)[kLanes], float* to, int row_numbers) {
      for (int i = 0; i < kLanes; ++i)
        on_both_axes<KernelToBasis>([&](int row, int column) { return from[3 * row + column][i]; },
                                    [&](int row, int column, Vec value) {
                                      store(to + (4 * row + column) * step + int64_t(i) * row_numbers, value);
                                    });
    };
    transform(rows, straight + int64_t(first_c) * l.filters + first_f, l.filters);
    transform(columns, transposed + int64_t(first_f) * l.channels + first_c, l.channels);
  });
}

// Products of some tiles, [16, kRows, kVectors vectors from `column` on]: [tiles, inner] times [inner, outer].
template <int kVectors>
void multiply_tiles(const Term* terms, int num_terms, int first, int count, int inner, int outer, int64_t tile_step,
                    int column, float* out) {
  constexpr int kWidth = kVectors * kLanes;
  for (int matrix = 0; matrix < kBasis; ++matrix) {
    Run runs[2];
    for (int term = 0; term < num_terms; ++term)
      runs[term] = {terms[term].inputs + matrix * tile_step + int64_t(first) * inner,
                    terms[term].other + matrix * matrix_step(inner, outer) + column};
    float* to = out + int64_t(matrix) * kRows * kWidth;
    tile<kVectors>(count, runs, num_terms, inner, {inner, 1, outer},
                   [&](int row, int lane, Vec value) { store(to + row * kWidth + lane, value); });
  }
}

// Pictures are brought to tiles before they are multiplied.
struct TiledTerm {
  const float* pictures;
  float* tiles;
  const float* kernel;
};

// A convolution with bias, ReLU and pooling.
template <bool is_derivative>
void tiled_layer(const Team& team, const Chain& chain, int index, const TiledTerm* given, int num_terms,
                 const float* bias, Bits* active, float* out, float* products) {
  const Layer& l = chain.layers[index];
  const Grid& next = chain.layers[index + 1].in;
  const int total = chain.images * l.num_tiles();
  with_vectors(l.filters, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value, kWidth = kVectors * kLanes;
    team.each(num_blocks(total), [&](int block) {
      const auto [first, count] = block_of(total, block);
      Term terms[2];
      for (int term = 0; term < num_terms; ++term) {
        tiles_of_input(l, chain.images, given[term].pictures, first, count, given[term].tiles);
        terms[term] = {given[term].tiles, given[term].kernel};
      }
      for (int filter = 0; filter < l.filters; filter += kWidth) {
        multiply_tiles<kVectors>(terms, num_terms, first, count, l.channels, l.filters,
                                 matrix_step(total, l.channels), filter, products);
        for (int i = 0; i < count; ++i) {
          const Tile tile(l, first + i);
          for (int lane = 0; lane < kWidth; lane += kLanes) {
            Vec sum = {};
            on_both_axes<OutputFromBasis>(
                [&](int row, int column) {
                  return load(products + ((4 * row + column) * kRows + i) * int64_t(kWidth) + lane);
                },
                [&](int row, int column, Vec value) {
                  const int y = 2 * tile.y + row, x = 2 * tile.x + column;
                  value = activated<is_derivative>(value + load(bias + filter + lane),
                                                   active[l.active(tile.m, y, x, filter + lane)]);
                  if (l.pool)
                    sum += value;
                  else
                    store(out + next.at(tile.m, y, x) + filter + lane, value);
                });
            if (l.pool) store(out + next.at(tile.m, tile.y, tile.x) + filter + lane, 0.25f * sum);
          }
        }
      }
    });
  });
}

// What each tile adds to the gradient of the input: [tiles, 16, C]. `add_tiles` puts them together.
void tiles_input_gradient(const Team& team, const Chain& chain, int index, const Term* terms, int num_terms, float* out,
                          float* products) {
  const Layer& l = chain.layers[index];
  const int total = chain.images * l.num_tiles();
  with_vectors(l.channels, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value, kWidth = kVectors * kLanes;
    const int parts = l.channels / kWidth;
    team.each(num_blocks(total) * parts, [&](int unit) {
      const auto [first, count] = block_of(total, unit / parts);
      const int channel = unit % parts * kWidth;
      multiply_tiles<kVectors>(terms, num_terms, first, count, l.filters, l.channels, matrix_step(total, l.filters),
                               channel, products);
      for (int i = 0; i < count; ++i)
        for (int lane = 0; lane < kWidth; lane += kLanes) {
          float* to = out + int64_t(first + i) * kBasis * l.channels + channel + lane;
          on_both_axes<InputFromBasis>(
              [&](int row, int column) {
                return load(products + ((4 * row + column) * kRows + i) * int64_t(kWidth) + lane);
              },
              [&](int row, int column, Vec value) { store(to + int64_t(4 * row + column) * l.channels, value); });
        }
    });
  });
}

// Every pixel is in up to four tiles, which are added in the same order whoever computed them.
void add_tiles(const Team& team, const Chain& chain, int index, const float* tiles, float* out) {
  const Layer& l = chain.layers[index];
  const int rows = l.out_height / 2, columns = l.out_width / 2;
  team.each(chain.images * l.in.height, [&](int unit) {
    const int m = unit / l.in.height, y = unit % l.in.height + l.in.border;
    for (int at_x = 0; at_x < l.in.width; ++at_x) {
      const int x = at_x + l.in.border;
      const float* parts[4];
      int num_parts = 0;
      for (int tile_y = std::max(0, y / 2 - 1); tile_y <= std::min(y / 2, rows - 1); ++tile_y)
        for (int tile_x = std::max(0, x / 2 - 1); tile_x <= std::min(x / 2, columns - 1); ++tile_x)
          parts[num_parts++] = tiles + (((int64_t(m) * rows + tile_y) * columns + tile_x) * kBasis +
                                        4 * (y - 2 * tile_y) + x - 2 * tile_x) * l.channels;
      for (int c = 0; c < l.channels; c += kLanes) {
        Vec sum = {};
        for (int part = 0; part < num_parts; ++part) sum += load(parts[part] + c);
        store(out + l.in.at(m, y - l.in.border, at_x) + c, sum);
      }
    }
  });
}

// The gradients of kernel, [16, C, F], and bias behind it.
void tiles_kernel_gradient(const Team& team, const Chain& chain, int index, const Term* terms, int num_terms,
                           const float* bias_gradient_of, float* out) {
  static const float one = 1.0f;
  const Layer& l = chain.layers[index];
  const int total = chain.images * l.num_tiles(), blocks = num_blocks(l.channels);
  const int64_t kernel_step = matrix_step(l.channels, l.filters);
  const int64_t input_step = matrix_step(total, l.channels), output_step = matrix_step(total, l.filters);
  with_vectors(l.filters, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    const int chunks = l.filters / (kVectors * kLanes);
    team.each((kBasis * blocks + 1) * chunks, [&](int unit) {
      const int matrix = unit / chunks / blocks, filter = unit % chunks * kVectors * kLanes;
      Run runs[2];
      if (matrix == kBasis) {
        // In the basis, the middle of a tile is its sum.
        runs[0] = {&one, bias_gradient_of + 5 * output_step + filter};
        return tile<kVectors>(1, runs, 1, total, {0, 0, l.filters}, [&](int, int lane, Vec value) {
          store(out + kBasis * kernel_step + filter + lane, value);
        });
      }
      const auto [first, count] = block_of(l.channels, unit / chunks % blocks);
      for (int term = 0; term < num_terms; ++term)
        runs[term] = {terms[term].inputs + matrix * input_step + first,
                      terms[term].other + matrix * output_step + filter};
      float* to = out + matrix * kernel_step + int64_t(first) * l.filters + filter;
      tile<kVectors>(count, runs, num_terms, total, {1, l.channels, l.filters},
                     [&](int row, int lane, Vec value) { store(to + int64_t(row) * l.filters + lane, value); });
    });
  });
}

// numbers -= rate * gradient, for kernel and bias.
void descend_tiles(const Team& team, const Layer& l, const float* gradient, float rate, const Numbers& numbers) {
  const int64_t total = int64_t(l.channels) * l.filters, step = matrix_step(l.channels, l.filters);
  team.each(static_cast<int>(total / kLanes), [&](int unit) {
    const float* from = gradient + int64_t(unit) * kLanes;
    float* to = numbers.kernel + int64_t(unit) * kLanes;
    on_both_axes<KernelFromBasis>([&](int row, int column) { return load(from + (4 * row + column) * step); },
                                  [&](int row, int column, Vec value) {
                                    float* at = to + (3 * row + column) * total;
                                    store(at, load(at) - rate * value);
                                  });
  });
  if (team.is_first())
    for (int f = 0; f < l.filters; f += kLanes)
      store(numbers.bias + f, load(numbers.bias + f) - rate * load(gradient + kBasis * step + f));
}

void descend(const Team& team, const Layer& l, const float* gradient, float rate, const Numbers& numbers) {
  if (l.by_tiles)
    descend_tiles(team, l, gradient, rate, numbers);
  else if (!l.is_dense)
    descend_parts(team, l, gradient, rate, numbers.kernel);
}

// ---------------------------------------------------------------------------------------------------------------------
// Dense layers: kernels as panels [K / 64, O, 64]
// ---------------------------------------------------------------------------------------------------------------------

void to_panels(const Layer& l, const float* kernel, float* panels) {
  for (int k = 0; k < l.inputs; ++k)
    for (int o = 0; o < l.outputs; ++o)
      panels[(int64_t(k / kPanel) * l.outputs + o) * kPanel + k % kPanel] = kernel[int64_t(k) * l.outputs + o];
}

void from_panels(const Layer& l, const float* panels, float* kernel) {
  for (int k = 0; k < l.inputs; ++k)
    for (int o = 0; o < l.outputs; ++o)
      kernel[int64_t(k) * l.outputs + o] = panels[(int64_t(k / kPanel) * l.outputs + o) * kPanel + k % kPanel];
}

template <int kImages, int kOutputs>
void dots_of(const Layer& l, const Term* terms, int num_terms, int first_panel, int last_panel, int m, int o,
             float* out) {
  Vec sums[kImages][kOutputs] = {};
  for (int term = 0; term < num_terms; ++term)
    for (int panel = first_panel; panel < last_panel; ++panel) {
      const float* x = terms[term].inputs + m * l.padded_inputs() + int64_t(panel) * kPanel;
      const float* w = terms[term].other + (int64_t(panel) * l.outputs + o) * kPanel;
      for (int k = 0; k < kPanel; k += kLanes) {
        Vec left[kImages];
#pragma GCC unroll 8
        for (int i = 0; i < kImages; ++i) left[i] = load(x + i * l.padded_inputs() + k);
#pragma GCC unroll 8
        for (int j = 0; j < kOutputs; ++j) {
          const Vec right = load(w + j * kPanel + k);
#pragma GCC unroll 8
          for (int i = 0; i < kImages; ++i) sums[i][j] += left[i] * right;
        }
      }
    }
#pragma GCC unroll 8
  for (int i = 0; i < kImages; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < kOutputs; ++j) out[int64_t(m + i) * l.outputs + o + j] = sum_of(sums[i][j]);
}

// The panels of a part of the sum over inputs: the same thread has the same panels in every step.
std::pair<int, int> panels_of(const Layer& l, int chunk) {
  return {l.panels * chunk / l.chunks, l.panels * (chunk + 1) / l.chunks};
}

// One image: panel after panel as they lie in memory, with the sums in `lanes`, [O, kLanes].
void add_dots_of_one(const Layer& l, const Term* terms, int num_terms, int panel, float* lanes) {
  for (int term = 0; term < num_terms; ++term) {
    const float* x = terms[term].inputs + int64_t(panel) * kPanel;
    const float* w = terms[term].other + int64_t(panel) * l.outputs * kPanel;
    for (int o = 0; o < l.outputs; ++o, w += kPanel) {
      Vec sums[2] = {load(lanes + int64_t(o) * kLanes)};
#pragma GCC unroll 16
      for (int k = 0; k < kPanel; k += kLanes) sums[k / kLanes % 2] += load(x + k) * load(w + k);
      store(lanes + int64_t(o) * kLanes, sums[0] + sums[1]);
    }
  }
}

// [M, O] for the panels of one chunk; `before` is called for each of them first.
template <class Before>
void partial_outputs(const Layer& l, int images, const Term* terms, int num_terms, int chunk, float* partial,
                     float* lanes, Before before) {
  const auto [first, last] = panels_of(l, chunk);
  float* out = partial + int64_t(chunk) * images * l.outputs;
  if (images == 1) {
    std::fill(lanes, lanes + int64_t(l.outputs) * kLanes, 0.0f);
    for (int panel = first; panel < last; ++panel) {
      before(panel);
      add_dots_of_one(l, terms, num_terms, panel, lanes);
    }
    for (int o = 0; o < l.outputs; ++o) out[o] = sum_of(load(lanes + int64_t(o) * kLanes));
    return;
  }
  for (int panel = first; panel < last; ++panel) before(panel);
  for (int o = 0; o < l.outputs; o += kDot)
    for (int m = 0; m < images; m += kDot)
      with_count<kDot>(std::min(kDot, images - m), [&, first = first, last = last](auto some_images) {
        with_count<kDot>(std::min(kDot, l.outputs - o), [&](auto some_outputs) {
          dots_of<decltype(some_images)::value, decltype(some_outputs)::value>(l, terms, num_terms, first, last, m, o,
                                                                              out);
        });
      });
}

// [M, O]: the bias and all parts.
void add_outputs(const Layer& l, int images, const float* partial, const float* bias, float* out) {
  const int64_t total = int64_t(images) * l.outputs;
  for (int64_t i = 0; i < total; ++i) out[i] = bias[i % l.outputs];
  for (int chunk = 0; chunk < l.chunks; ++chunk)
    for (int64_t i = 0; i < total; ++i) out[i] += partial[chunk * total + i];
}

template <int kTerms>
void change_panel_by_one(const Layer& l, const Term* terms, float scale, int panel, float* numbers) {
  for (int k = 0; k < kPanel; k += 4 * kLanes) {
    Vec x[kTerms][4];
    for (int term = 0; term < kTerms; ++term)
      for (int v = 0; v < 4; ++v)
        x[term][v] = scale * load(terms[term].inputs + int64_t(panel) * kPanel + k + v * kLanes);
    for (int o = 0; o < l.outputs; ++o) {
      float* to = numbers + int64_t(o) * kPanel + k;
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        Vec value = load(to + v * kLanes);
#pragma GCC unroll 2
        for (int term = 0; term < kTerms; ++term) value += terms[term].other[o] * x[term][v];
        store(to + v * kLanes, value);
      }
    }
  }
}

// panel += scale * sum over terms of inputs.T @ gradient, for one panel; gradients are [M, O].
void change_panel(const Layer& l, int images, const Term* terms, int num_terms, float scale, int panel, float* panels) {
  float* numbers = panels + int64_t(panel) * l.outputs * kPanel;
  if (images == 1)
    return with_count<2>(num_terms, [&](auto count) {
      change_panel_by_one<decltype(count)::value>(l, terms, scale, panel, numbers);
    });
  for (int k = 0; k < kPanel; k += 2 * kLanes)
    in_blocks(l.outputs, [&](int o, int count) {
      Run runs[2];
      for (int term = 0; term < num_terms; ++term)
        runs[term] = {terms[term].other + o, terms[term].inputs + int64_t(panel) * kPanel + k};
      float* to = numbers + int64_t(o) * kPanel + k;
      tile<2>(count, runs, num_terms, images, {1, l.outputs, l.padded_inputs()}, [&](int row, int lane, Vec value) {
        float* at = to + int64_t(row) * kPanel + lane;
        store(at, load(at) + scale * value);
      });
    });
}

// [M, 64] of the input's gradient: the sum over terms of gradient @ kernel.T.
void panel_input_gradient(const Layer& l, int images, const Term* terms, int num_terms, int panel, float* out) {
  const auto multiply = [&](auto vectors, int k, int m, int count) {
    constexpr int kVectors = decltype(vectors)::value;
    Run runs[2];
    for (int term = 0; term < num_terms; ++term)
      runs[term] = {terms[term].inputs + int64_t(m) * l.outputs,
                    terms[term].other + int64_t(panel) * l.outputs * kPanel + k};
    float* to = out + m * l.padded_inputs() + int64_t(panel) * kPanel + k;
    tile<kVectors, 2 * kRows / kVectors>(
        count, runs, num_terms, l.outputs, {l.outputs, 1, kPanel},
        [&](int row, int lane, Vec value) { store(to + row * l.padded_inputs() + lane, value); });
  };
  // Few images leave registers for more vectors of the panel.
  if (images <= kRows / 2)
    for (int k = 0; k < kPanel; k += 4 * kLanes) multiply(std::integral_constant<int, 4>{}, k, 0, images);
  else
    for (int k = 0; k < kPanel; k += 2 * kLanes)
      in_blocks(images, [&](int m, int count) { multiply(std::integral_constant<int, 2>{}, k, m, count); });
}

// [M, O] to the padded input of the next layer, with ReLU; `where` is that input on the way there, for a derivative.
void dense_activation(const Layer& next, int images, const float* outputs, const float* where, float* out) {
  const int count = next.inputs;
  for (int m = 0; m < images; ++m) {
    float* row = out + m * next.padded_inputs();
    for (int o = 0; o < count; ++o) {
      const float value = outputs[int64_t(m) * count + o];
      row[o] = (where ? where[m * next.padded_inputs() + o] : value) > 0.0f ? value : 0.0f;
    }
    std::fill(row + count, row + next.padded_inputs(), 0.0f);
  }
}

// The gradient of the next layer's input to that of this layer's output [M, O].
void dense_activation_transpose(const Layer& next, int images, const float* gradient, const float* where, float* out) {
  for (int m = 0; m < images; ++m)
    for (int o = 0; o < next.inputs; ++o) {
      const int64_t at = m * next.padded_inputs() + o;
      out[int64_t(m) * next.inputs + o] = where[at] > 0.0f ? gradient[at] : 0.0f;
    }
}

void add_rows(int images, int outputs, const float* gradient, float scale, float* bias) {
  for (int o = 0; o < outputs; ++o) {
    float sum = 0.0f;
    for (int m = 0; m < images; ++m) sum += gradient[int64_t(m) * outputs + o];
    bias[o] += scale * sum;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Local training, and the way back
// ---------------------------------------------------------------------------------------------------------------------

std::vector<Numbers> take_weights(const Chain& chain, Arena& arena, const float* const* given) {
  std::vector<Numbers> weights;
  for (size_t i = 0; i < chain.layers.size(); ++i) {
    const Layer& l = chain.layers[i];
    float* kernel = arena.take(l.kernel_numbers + l.bias_numbers);
    weights.push_back({kernel, kernel + l.kernel_numbers});
    if (l.is_dense)
      to_panels(l, given[2 * i], kernel);
    else
      std::copy(given[2 * i], given[2 * i] + l.kernel_numbers, kernel);
    std::copy(given[2 * i + 1], given[2 * i + 1] + l.bias_numbers, weights.back().bias);
  }
  return weights;
}

void give_weights(const Chain& chain, const std::vector<Numbers>& weights, float* const* out) {
  for (size_t i = 0; i < chain.layers.size(); ++i) {
    const Layer& l = chain.layers[i];
    if (l.is_dense)
      from_panels(l, weights[i].kernel, out[2 * i]);
    else
      std::copy(weights[i].kernel, weights[i].kernel + l.kernel_numbers, out[2 * i]);
    std::copy(weights[i].bias, weights[i].bias + l.bias_numbers, out[2 * i + 1]);
  }
}

// What convolutions are computed with; in tiles, all of it is in their basis.
struct Operands {
  std::vector<float*> turned;   // kernels of the transposes
  std::vector<float*> spread;   // gradients at the outputs
  std::vector<float*> tiles;    // inputs, in tiles only
  std::vector<float*> kernels;  // in tiles only

  Operands(const Chain& chain, Arena& arena) {
    for (const Layer& l : chain.layers) {
      const int64_t num_tiles = l.by_tiles ? chain.images * l.num_tiles() : 0;
      const int64_t kernel = l.by_tiles ? kBasis * matrix_step(l.channels, l.filters) : l.is_dense ? 0 : l.kernel_numbers;
      const int64_t outputs = l.is_dense ? 0 : chain.images * l.out.image;
      turned.push_back(arena.take(kernel));
      spread.push_back(arena.take(l.by_tiles ? kBasis * matrix_step(num_tiles, l.filters) : outputs));
      tiles.push_back(arena.take(l.by_tiles ? kBasis * matrix_step(num_tiles, l.channels) : 0));
      kernels.push_back(arena.take(l.by_tiles ? kernel : 0));
    }
  }

  void set_kernel(const Team& team, const Chain& chain, int i, const float* kernel) {
    const Layer& l = chain.layers[i];
    if (l.by_tiles)
      kernel_to_basis(team, l, kernel, kernels[i], turned[i]);
    else if (i)
      turn_kernel(team, l, kernel, turned[i]);
  }

  void set_gradient(const Team& team, const Chain& chain, int i, const float* gradient, const Bits* active) {
    if (chain.layers[i].by_tiles)
      tiles_of_gradient(team, chain, i, gradient, active, spread[i]);
    else
      spread_gradient(team, chain, i, gradient, active, spread[i]);
  }
};

// What both ways need room for.
struct Scratch {
  float* images;  // the batch, in the grid of the first layer
  Operands operands;
  std::vector<float*> gradient;  // of kernels, in parts or in the basis of tiles
  std::vector<float*> patches;   // what tiles add to the gradients of inputs
  float* partial;                // sums of dense layers
  std::vector<float*> outputs;   // [M, O] of dense layers
  std::vector<float*> at_output; // [M, O] gradients there
  // One for each thread: rows of a convolution or products of tiles, and what the sums of a kernel gradient run over.
  std::vector<float*> rows;
  std::vector<std::vector<Run>> runs;

  Scratch(const Chain& chain, Arena& arena) : operands(chain, arena) {
    int64_t partial_numbers = 0, row_numbers = 0, num_runs = 0;
    images = arena.take(chain.images * chain.layers[0].in.image);
    for (const Layer& l : chain.layers) {
      const int64_t outputs_here = l.is_dense ? int64_t(chain.images) * l.outputs : 0;
      gradient.push_back(arena.take(l.is_dense   ? 0
                                    : l.by_tiles ? kBasis * matrix_step(l.channels, l.filters) + l.filters
                                                 : l.num_parts() * (l.kernel_numbers + l.bias_numbers)));
      patches.push_back(arena.take(l.by_tiles ? int64_t(chain.images) * l.num_tiles() * kBasis * l.channels : 0));
      outputs.push_back(arena.take(outputs_here));
      at_output.push_back(arena.take(outputs_here));
      if (!l.is_dense) num_runs = std::max(num_runs, int64_t(2) * chain.images * l.out_height);
      if (l.is_dense) row_numbers = std::max(row_numbers, int64_t(l.outputs) * kLanes);
      partial_numbers = std::max(partial_numbers, kChunks * outputs_here);
      row_numbers = std::max(row_numbers, l.is_dense ? int64_t(0) : int64_t(2) * l.out_width * 2 * kLanes);
      if (l.by_tiles) row_numbers = std::max(row_numbers, int64_t(kBasis) * kRows * 2 * kLanes);
    }
    partial = arena.take(partial_numbers);
    for (int thread = 0; thread < num_threads(); ++thread) {
      rows.push_back(arena.take(row_numbers));
      runs.emplace_back(num_runs);
    }
  }
};

void softmax_gradient(const Chain& chain, const float* logits, const int32_t* labels, const float* share,
                      float* probabilities, float* gradient) {
  const int classes = chain.classes;
  for (int m = 0; m < chain.images; ++m) {
    const float* z = logits + int64_t(m) * classes;
    float* p = probabilities + int64_t(m) * classes;
    const float most = *std::max_element(z, z + classes);
    float total = 0.0f;
    for (int k = 0; k < classes; ++k) total += p[k] = std::exp(z[k] - most);
    for (int k = 0; k < classes; ++k) {
      p[k] /= total;
      gradient[int64_t(m) * classes + k] = (p[k] - (k == labels[m] ? 1.0f : 0.0f)) * share[m];
    }
  }
}

struct Batches {
  int steps;
  const float* images;
  const int32_t* labels;
  const float* share;
  float rate;
};

// With a trajectory of one step, every step uses that one again: nothing is kept.
void train(Team team, const Chain& chain, const Batches& batches, std::vector<Numbers>& weights, Scratch& s,
           float* trajectory, int64_t kept_steps) {
  const int count = static_cast<int>(chain.layers.size()), last = count - 1;
  const Grid& first = chain.layers[0].in;
  const int64_t image_numbers = int64_t(first.height) * first.width * first.channels;
  float* rows = s.rows[team.index];
  Operands& here = s.operands;
  for (int step = 0; step < batches.steps; ++step) {
    float* slot = trajectory + (step % kept_steps) * chain.slot;
    const auto input = [&](int i) { return i ? slot + chain.layers[i].input_at : s.images; };
    const auto active = [&](int i) { return reinterpret_cast<Bits*>(slot + chain.layers[i].active_at); };
    const float* images = batches.images + int64_t(step) * chain.images * image_numbers;
    team.each(chain.images, [&](int m) {
      copy_images(first, images, s.images, m);
      for (int i = 1; i < count; ++i) clear_border(chain.layers[i].in, input(i), m);
    });
    for (int i = 0; i < count; ++i) {
      const Layer& l = chain.layers[i];
      if (l.is_dense) continue;
      const auto [from, to] = team.part(static_cast<int>(l.kernel_numbers / kLanes));
      std::copy(weights[i].kernel + from * kLanes, weights[i].kernel + to * kLanes, slot + l.kernel_at + from * kLanes);
      here.set_kernel(team, chain, i, weights[i].kernel);
    }
    team.meet();

    for (int i = 0; i < count; ++i) {
      const Layer& l = chain.layers[i];
      const Term term{input(i), weights[i].kernel};
      if (!l.is_dense) {
        const TiledTerm tiled{input(i), here.tiles[i], here.kernels[i]};
        if (l.by_tiles)
          tiled_layer<false>(team, chain, i, &tiled, 1, weights[i].bias, active(i), input(i + 1), rows);
        else
          convolution_layer<false>(team, chain, i, &term, 1, weights[i].bias, active(i), input(i + 1), rows);
        team.meet();
        continue;
      }
      team.each(l.chunks, [&](int chunk) { partial_outputs(l, chain.images, &term, 1, chunk, s.partial, rows, [](int) {}); });
      team.meet();
      if (team.is_first()) {
        add_outputs(l, chain.images, s.partial, weights[i].bias, s.outputs[i]);
        if (i < last)
          dense_activation(chain.layers[i + 1], chain.images, s.outputs[i], nullptr, input(i + 1));
        else
          softmax_gradient(chain, s.outputs[i], batches.labels + int64_t(step) * chain.images,
                           batches.share + int64_t(step) * chain.images, slot + chain.probabilities_at,
                           slot + chain.logit_gradient_at);
      }
      team.meet();
    }

    for (int i = last; i >= 0; --i) {
      const Layer& l = chain.layers[i];
      float* gradient = i ? slot + l.gradient_at : nullptr;
      if (l.is_dense) {
        const float* at_output = i == last ? slot + chain.logit_gradient_at : s.at_output[i];
        if (i < last) {
          const Layer& next = chain.layers[i + 1];
          if (team.is_first())
            dense_activation_transpose(next, chain.images, slot + next.gradient_at, input(i + 1), s.at_output[i]);
          team.meet();
        }
        const Term back{at_output, weights[i].kernel}, change{input(i), at_output};
        team.each_backwards(l.chunks, [&](int chunk) {
          const auto [from, to] = panels_of(l, chunk);
          for (int panel = to; panel-- > from;) {
            if (i) panel_input_gradient(l, chain.images, &back, 1, panel, gradient);
            change_panel(l, chain.images, &change, 1, -batches.rate, panel, weights[i].kernel);
          }
        });
        if (team.is_first()) add_rows(chain.images, l.outputs, at_output, -batches.rate, weights[i].bias);
      } else {
        here.set_gradient(team, chain, i, slot + chain.layers[i + 1].gradient_at, active(i));
        team.meet();
        const Term change{l.by_tiles ? here.tiles[i] : input(i), here.spread[i]}, back{here.spread[i], here.turned[i]};
        if (l.by_tiles) {
          tiles_kernel_gradient(team, chain, i, &change, 1, here.spread[i], s.gradient[i]);
          tiles_input_gradient(team, chain, i, &back, 1, s.patches[i], rows);
          team.meet();
          add_tiles(team, chain, i, s.patches[i], gradient);
        } else {
          kernel_gradient(team, chain, i, &change, 1, here.spread[i], s.gradient[i], s.runs[team.index].data());
          if (i) input_gradient(team, chain, i, &back, 1, gradient);
        }
      }
      team.meet();
    }
    for (int i = 0; i < count; ++i) descend(team, chain.layers[i], s.gradient[i], batches.rate, weights[i]);
    if (!team.goes_on()) return;
  }
}

// What only the way back needs: derivatives in the direction of the adjoint (`dot`).
struct Dots {
  Operands operands;
  std::vector<float*> input, gradient, outputs, at_output;

  Dots(const Chain& chain, Arena& arena) : operands(chain, arena) {
    for (const Layer& l : chain.layers) {
      const int64_t numbers = l.is_dense ? int64_t(chain.images) * l.outputs : 0;
      input.push_back(arena.take(chain.images * l.in.image));
      gradient.push_back(arena.take(chain.images * l.in.image));
      outputs.push_back(arena.take(numbers));
      at_output.push_back(arena.take(numbers));
    }
  }
};

// `weights` are those after the last step at first; `adjoint` is v of `workbench.training`, changed from step to step.
void go_back(Team team, const Chain& chain, const Batches& batches, std::vector<Numbers>& weights,
             std::vector<Numbers>& adjoint, Scratch& s, Dots& d, float* trajectory, float* images_adjoint) {
  const int count = static_cast<int>(chain.layers.size()), last = count - 1;
  const Grid& first = chain.layers[0].in;
  const int64_t image_numbers = int64_t(first.height) * first.width * first.channels;
  float* rows = s.rows[team.index];
  Operands &here = s.operands, &along = d.operands;
  for (int step = batches.steps - 1; step >= 0; --step) {
    float* slot = trajectory + step * chain.slot;
    const auto input = [&](int i) { return i ? slot + chain.layers[i].input_at : s.images; };
    const auto active = [&](int i) { return reinterpret_cast<Bits*>(slot + chain.layers[i].active_at); };
    const auto kernel = [&](int i) {
      return chain.layers[i].is_dense ? weights[i].kernel : slot + chain.layers[i].kernel_at;
    };
    const auto at_output = [&](int i) { return i == last ? slot + chain.logit_gradient_at : s.at_output[i]; };
    const float* images = batches.images + int64_t(step) * chain.images * image_numbers;
    team.each(chain.images, [&](int m) { copy_images(first, images, s.images, m); });
    for (int i = 0; i < count; ++i) {
      const Layer& l = chain.layers[i];
      if (l.is_dense) {
        if (i < last && team.is_first()) {
          const Layer& next = chain.layers[i + 1];
          dense_activation_transpose(next, chain.images, slot + next.gradient_at, input(i + 1), s.at_output[i]);
        }
        continue;
      }
      here.set_gradient(team, chain, i, slot + chain.layers[i + 1].gradient_at, active(i));
      here.set_kernel(team, chain, i, kernel(i));
      along.set_kernel(team, chain, i, adjoint[i].kernel);
    }
    team.meet();

    for (int i = 0; i < count; ++i) {
      const Layer& l = chain.layers[i];
      const Term terms[] = {{input(i), adjoint[i].kernel}, {d.input[i], kernel(i)}};
      const int num_terms = i ? 2 : 1;  // the images have no derivative in the direction
      if (!l.is_dense) {
        const TiledTerm tiled[] = {{input(i), here.tiles[i], along.kernels[i]},
                                   {d.input[i], along.tiles[i], here.kernels[i]}};
        if (l.by_tiles)
          tiled_layer<true>(team, chain, i, tiled, 2, adjoint[i].bias, active(i), d.input[i + 1], rows);
        else
          convolution_layer<true>(team, chain, i, terms, num_terms, adjoint[i].bias, active(i), d.input[i + 1], rows);
        team.meet();
        continue;
      }
      const Term change{input(i), at_output(i)};
      team.each(l.chunks, [&](int chunk) {
        partial_outputs(l, chain.images, terms, num_terms, chunk, s.partial, rows, [&](int panel) {
          change_panel(l, chain.images, &change, 1, batches.rate, panel, weights[i].kernel);
        });
      });
      team.meet();
      if (team.is_first()) {
        add_outputs(l, chain.images, s.partial, adjoint[i].bias, d.outputs[i]);
        if (i < last) {
          dense_activation(chain.layers[i + 1], chain.images, d.outputs[i], input(i + 1), d.input[i + 1]);
        } else {
          const float* p = slot + chain.probabilities_at;
          for (int m = 0; m < chain.images; ++m, p += chain.classes) {
            const float* z = d.outputs[i] + int64_t(m) * chain.classes;
            float mean = 0.0f;
            for (int k = 0; k < chain.classes; ++k) mean += p[k] * z[k];
            for (int k = 0; k < chain.classes; ++k)
              d.at_output[i][int64_t(m) * chain.classes + k] =
                  p[k] * (z[k] - mean) * batches.share[int64_t(step) * chain.images + m];
          }
        }
      }
      team.meet();
    }

    for (int i = last; i >= 0; --i) {
      const Layer& l = chain.layers[i];
      const int num_terms = i ? 2 : 1;
      if (l.is_dense) {
        if (i < last) {
          if (team.is_first())
            dense_activation_transpose(chain.layers[i + 1], chain.images, d.gradient[i + 1], input(i + 1),
                                       d.at_output[i]);
          team.meet();
        }
        const Term back[] = {{d.at_output[i], kernel(i)}, {at_output(i), adjoint[i].kernel}};
        const Term change[] = {{input(i), d.at_output[i]}, {d.input[i], at_output(i)}};
        team.each_backwards(l.chunks, [&](int chunk) {
          const auto [from, to] = panels_of(l, chunk);
          for (int panel = to; panel-- > from;) {
            panel_input_gradient(l, chain.images, back, 2, panel, d.gradient[i]);
            change_panel(l, chain.images, change, num_terms, -batches.rate, panel, adjoint[i].kernel);
          }
        });
        if (team.is_first()) add_rows(chain.images, l.outputs, d.at_output[i], -batches.rate, adjoint[i].bias);
      } else {
        along.set_gradient(team, chain, i, d.gradient[i + 1], active(i));
        team.meet();
        const Term change[] = {{l.by_tiles ? here.tiles[i] : input(i), along.spread[i]},
                               {l.by_tiles ? along.tiles[i] : d.input[i], here.spread[i]}};
        const Term back[] = {{along.spread[i], i ? here.turned[i] : kernel(i)},
                             {here.spread[i], i ? along.turned[i] : adjoint[i].kernel}};
        if (l.by_tiles) {
          tiles_kernel_gradient(team, chain, i, change, 2, along.spread[i], s.gradient[i]);
          tiles_input_gradient(team, chain, i, back, 2, s.patches[i], rows);
          team.meet();
          add_tiles(team, chain, i, s.patches[i], d.gradient[i]);
        } else {
          kernel_gradient(team, chain, i, change, num_terms, along.spread[i], s.gradient[i],
                          s.runs[team.index].data());
          if (i)
            input_gradient(team, chain, i, back, 2, d.gradient[i]);
          else
            image_gradient(team, chain, back, 2, -batches.rate,
                           images_adjoint + int64_t(step) * chain.images * image_numbers);
        }
      }
      team.meet();
    }
    if (chain.layers[0].is_dense)
      team.each(chain.images, [&](int m) {
        float* to = images_adjoint + (int64_t(step) * chain.images + m) * image_numbers;
        for (int64_t i = 0; i < image_numbers; ++i) to[i] = -batches.rate * d.gradient[0][m * first.image + i];
      });
    for (int i = 0; i < count; ++i) descend(team, chain.layers[i], s.gradient[i], batches.rate, adjoint[i]);
    if (!team.goes_on()) return;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// What XLA calls
// ---------------------------------------------------------------------------------------------------------------------

struct Arguments {
  ffi::RemainingArgs& args;
  size_t next = 0;
  const ffi::AnyBuffer take() { return *args.get<ffi::AnyBuffer>(next++); }
  const float* floats() { return take().typed_data<float>(); }
};

Batches take_batches(Arguments& arguments) {
  const auto images = arguments.take();
  Batches batches{};
  batches.steps = static_cast<int>(images.dimensions()[0]);
  batches.images = images.typed_data<float>();
  batches.labels = arguments.take().typed_data<int32_t>();
  batches.share = arguments.floats();
  batches.rate = *arguments.floats();
  return batches;
}

int num_images(ffi::RemainingArgs& args) { return static_cast<int>(args.get<ffi::AnyBuffer>(0)->dimensions()[1]); }

// What is kept is written once and read once: without large pages, a tenth of the time would go to getting them.
void ask_for_large_pages(void* memory, size_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kPage = 4096;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(memory) + bytes) / kPage * kPage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a wish; it may be refused
#endif
}

ffi::Error out_of_memory() {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "there is not enough memory to simulate the client's training");
}

// (images, labels, share, rate, weights...) to (weights..., trajectory).
ffi::Error forward(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Span<const int64_t> shape) try {
  const Chain chain = make_chain(shape.begin(), static_cast<int64_t>(shape.size()), num_images(args));
  Arguments arguments{args};
  const Batches batches = take_batches(arguments);
  std::vector<const float*> given;
  std::vector<float*> out;
  for (size_t i = 0; i < 2 * chain.layers.size(); ++i) {
    given.push_back(arguments.floats());
    out.push_back((*rets.get<ffi::AnyBuffer>(i))->typed_data<float>());
  }
  ffi::AnyBuffer kept = **rets.get<ffi::AnyBuffer>(2 * chain.layers.size());
  float* trajectory = kept.typed_data<float>();
  ask_for_large_pages(trajectory, kept.size_bytes());
  const int64_t kept_steps = kept.dimensions()[0];
  Arena arena;
  auto weights = take_weights(chain, arena, given.data());
  Scratch scratch(chain, arena);
  together([&](const Team& team) { train(team, chain, batches, weights, scratch, trajectory, kept_steps); });
  give_weights(chain, weights, out.data());
  return ffi::Error::Success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// (images, labels, share, rate, trajectory, final weights..., adjoint...) to (adjoint..., images' adjoint).
ffi::Error backward(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Span<const int64_t> shape) try {
  const Chain chain = make_chain(shape.begin(), static_cast<int64_t>(shape.size()), num_images(args));
  Arguments arguments{args};
  const Batches batches = take_batches(arguments);
  // It is only read.
  float* trajectory = const_cast<float*>(arguments.floats());
  std::vector<const float*> given, directions;
  std::vector<float*> out;
  for (size_t i = 0; i < 2 * chain.layers.size(); ++i) {
    given.push_back(arguments.floats());
    out.push_back((*rets.get<ffi::AnyBuffer>(i))->typed_data<float>());
  }
  for (size_t i = 0; i < 2 * chain.layers.size(); ++i) directions.push_back(arguments.floats());
  float* images_adjoint = (*rets.get<ffi::AnyBuffer>(2 * chain.layers.size()))->typed_data<float>();
  Arena arena;
  auto weights = take_weights(chain, arena, given.data());
  auto adjoint = take_weights(chain, arena, directions.data());
  Scratch scratch(chain, arena);
  Dots dots(chain, arena);
  together([&](const Team& team) {
    go_back(team, chain, batches, weights, adjoint, scratch, dots, trajectory, images_adjoint);
  });
  give_weights(chain, adjoint, out.data());
  return ffi::Error::Success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace

// How many floats are kept of every local step.
extern "C" int64_t workbench_slot(const int64_t* numbers, int64_t count, int64_t images) {
  return make_chain(numbers, count, static_cast<int>(images)).slot;
}

#define WORKBENCH_HANDLER ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("layers")
XLA_FFI_DEFINE_HANDLER_SYMBOL(workbench_forward, forward, WORKBENCH_HANDLER);
XLA_FFI_DEFINE_HANDLER_SYMBOL(workbench_backward, backward, WORKBENCH_HANDLER);
