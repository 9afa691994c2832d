// SIMD vectors, and the matrix product on which everything is built.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace workbench {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 14, kDot = 5;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRows = 6, kDot = 3;
#else
constexpr int kLanes = 4, kRows = 6, kDot = 3;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float VecAnywhere __attribute__((vector_size(4 * kLanes), aligned(4)));  // unaligned
typedef int32_t IntVec __attribute__((vector_size(4 * kLanes)));
typedef std::conditional_t<kLanes == 16, uint16_t, uint8_t> Bits;  // one bit for each lane of a vector

inline Vec load(const float* from) { return *reinterpret_cast<const VecAnywhere*>(from); }
inline void store(float* to, Vec value) { *reinterpret_cast<VecAnywhere*>(to) = value; }

// A mask of positive numbers, a vector with zeros outside a mask, and a sum. Compilers do not find these instructions.
#if defined(__AVX512F__)
inline Bits positive(Vec value) { return _mm512_cmp_ps_mask(__m512(value), _mm512_setzero_ps(), _CMP_GT_OQ); }
inline Vec only(Vec value, Bits bits) { return Vec(_mm512_maskz_mov_ps(bits, __m512(value))); }
// As _mm512_reduce_add_ps, which has an uninitialised variable that GCC warns of.
inline float sum_of(Vec value) {
  const __m512d whole = _mm512_castps_pd(__m512(value));
  const __m256 eight = _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xFF, whole, 0)) +
                       _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xFF, whole, 1));
  const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  const __m128 two = four + _mm_movehl_ps(four, four);
  return two[0] + two[1];
}
#else
inline Bits positive(Vec value) {
#if defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps(__m256(value), _mm256_setzero_ps(), _CMP_GT_OQ));
#else
  Bits bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= (value[lane] > 0.0f) << lane;
  return bits;
#endif
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

// The numbers of two vectors, alternately from each, starting at `kFirst`.
template <int kFirst, int... kIndex>
inline Vec interleave(Vec first, Vec second, std::integer_sequence<int, kIndex...>) {
#if defined(__clang__) || __GNUC__ >= 12
  return __builtin_shufflevector(first, second, (kIndex / 2 + kIndex % 2 * kLanes + kFirst)...);
#else
  return __builtin_shuffle(first, second, IntVec{(kIndex / 2 + kIndex % 2 * kLanes + kFirst)...});
#endif
}

// Transposes a square matrix of kLanes vectors.
inline void transpose(const Vec* rows, Vec* columns) {
  constexpr std::make_integer_sequence<int, kLanes> kAll;
  Vec from[kLanes], to[kLanes];
  std::copy(rows, rows + kLanes, from);
#pragma GCC unroll 4
  for (int width = 1; width < kLanes; width *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      const Vec first = from[i], second = from[i + kLanes / 2];
      to[2 * i] = interleave<0>(first, second, kAll);
      to[2 * i + 1] = interleave<kLanes / 2>(first, second, kAll);
    }
    std::copy(to, to + kLanes, from);
  }
  std::copy(to, to + kLanes, columns);
}

// A part of a sum of products: `length` scalars of each row of a, and as many vectors of b.
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

// Calls work with a number from 1 to kMost as a compile-time constant.
template <int kMost, class Work>
inline void with_count(int count, Work work) {
  if constexpr (kMost > 1)
    if (count < kMost) return with_count<kMost - 1>(count, work);
  work(std::integral_constant<int, kMost>{});
}

template <int kVectors, int kMostRows = kRows, class Finish>
void tile(int rows, const Run* runs, int num_runs, int length, Strides by, Finish finish) {
  with_count<kMostRows>(
      rows, [&](auto count) { tile_of<decltype(count)::value, kVectors>(runs, num_runs, length, by, finish); });
}

// Divides rows into blocks of about equal size, at most kMost: the (first row, number of rows) of one, or work(both).
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

// Channels in chunks of two vectors, or of one if two do not divide them.
inline int vectors_of(int channels) { return channels % (2 * kLanes) == 0 ? 2 : 1; }
template <class Work>
void with_vectors(int channels, Work work) {
  if (vectors_of(channels) == 2)
    work(std::integral_constant<int, 2>{});
  else
    work(std::integral_constant<int, 1>{});
}

}  // namespace workbench
