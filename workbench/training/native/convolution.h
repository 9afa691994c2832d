// Convolutions with kernels of any size.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "layer.h"
#include "memory.h"
#include "threads.h"
#include "vectors.h"

namespace workbench {

constexpr int kMostRuns = 2 * kMostKernelRows;  // two terms

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

// ReLU. The forward pass (`is_derivative` false) stores where it is active, and the backward pass reads it.
template <bool is_derivative>
using Active = std::conditional_t<is_derivative, const Bits, Bits>;
template <bool is_derivative>
inline Vec activated(Vec value, Active<is_derivative>& active) {
  if constexpr (!is_derivative) active = positive(value);
  return only(value, active);
}

// One output row of a layer: convolution, bias, ReLU and, if the layer has it, pooling.
template <int kVectors, bool is_derivative>
void activated_row(const LayerShape& l, const Term* terms, int num_terms, const float* bias,
                   Active<is_derivative>* active, const Grid& next, float* out, float* rows, int m, int y, int filter) {
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
                       const float* bias, Active<is_derivative>* active, float* out, float* rows) {
  const LayerShape& l = chain.layers[index];
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

// The gradient at a convolution's output, from the gradient after pooling.
template <int kStep>
void spread_by(const Team& team, const Chain& chain, const LayerShape& l, const Grid& next, const float* gradient,
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

inline void spread_gradient(const Team& team, const Chain& chain, int index, const float* gradient, const Bits* active,
                            float* out) {
  const LayerShape& l = chain.layers[index];
  const Grid& next = chain.layers[index + 1].in;
  if (l.pool)
    spread_by<2>(team, chain, l, next, gradient, active, out);
  else
    spread_by<1>(team, chain, l, next, gradient, active, out);
}

// [k, k, C, F] to [k, k, F, C], flipped: the kernel of the transpose.
inline void flip_kernel(const Team& team, const LayerShape& l, const float* kernel, float* flipped) {
  const int offsets = l.size * l.size;
  team.each(offsets, [&](int unit) {
    const float* from = kernel + int64_t(offsets - 1 - unit) * l.channels * l.filters;
    float* to = flipped + int64_t(unit) * l.channels * l.filters;
    for (int c = 0; c < l.channels; c += kLanes)
      for (int f = 0; f < l.filters; ++f)
        for (int lane = 0; lane < kLanes; ++lane)
          to[int64_t(f) * l.channels + c + lane] = from[int64_t(c + lane) * l.filters + f];
  });
}

// The gradient of a convolution's input: a convolution of the spread gradient with the flipped kernel.
inline void input_gradient(const Team& team, const Chain& chain, int index, const Term* terms, int num_terms,
                           float* out) {
  const LayerShape& l = chain.layers[index];
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

// The same for the first layer, which has few channels, with the kernel as it is: sums over vectors of F. The result,
// times `scale`, goes to images without a border.
template <int kPixels>
void image_pixels(const LayerShape& l, const Term* terms, int num_terms, int m, int y, int x, int c, float scale,
                  float* out) {
  Vec sums[kPixels] = {};
  for (int term = 0; term < num_terms; ++term)
    for (int row = 0; row < l.size; ++row) {
      const float* from =
          terms[term].inputs + m * l.out.image + (y + l.shift + row) * l.out.row + int64_t(x + l.shift) * l.filters;
      // Reading the kernel backwards flips it.
      const float* kernel =
          terms[term].other + (int64_t(l.size - row) * l.size * l.channels - l.channels + c) * l.filters;
      for (int column = 0; column < l.size; ++column, from += l.filters, kernel -= l.channels * l.filters)
        for (int f = 0; f < l.filters; f += kLanes) {
          const Vec weight = load(kernel + f);
#pragma GCC unroll 8
          for (int pixel = 0; pixel < kPixels; ++pixel)
            sums[pixel] += weight * load(from + int64_t(pixel) * l.filters + f);
        }
    }
#pragma GCC unroll 8
  for (int pixel = 0; pixel < kPixels; ++pixel) out[int64_t(pixel) * l.channels] = scale * sum_of(sums[pixel]);
}

inline void image_gradient(const Team& team, const Chain& chain, const Term* terms, int num_terms, float scale,
                           float* out) {
  constexpr int kPixels = 8;
  const LayerShape& l = chain.layers[0];
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

// The gradients of a convolution's kernel and bias, in num_parts() parts that `descend_parts` sums.
inline void kernel_gradient(const Team& team, const Chain& chain, int index, const Term* terms, int num_terms,
                            const float* bias_gradient_of, float* out, Run* runs) {
  static const float one = 1.0f;
  const LayerShape& l = chain.layers[index];
  const int run_rows = l.size * l.channels;  // rows of the kernel that are contiguous in a row of the input
  const int blocks = num_blocks(run_rows), parts = l.num_parts(), lines = chain.images * l.out_height;
  const int64_t part_numbers = l.kernel_numbers + l.bias_numbers;
  with_vectors(l.filters, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    const int chunks = l.filters / (kVectors * kLanes), rows = l.size * blocks + 1;  // one more for the bias
    team.each(parts * rows * chunks, [&](int unit) {
      // Channels vary slowest, so each thread's part of the gradient stays in its cache.
      const int filter = unit / (parts * rows) * kVectors * kLanes, part = unit / rows % parts, row = unit % rows;
      const int first_line = lines * part / parts, last_line = lines * (part + 1) / parts;
      const bool is_bias = row == l.size * blocks;
      const int kernel_row = row / blocks;
      const auto [first, count] = is_bias ? std::pair(0, 1) : block_of(run_rows, row % blocks);
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

// numbers -= rate * gradient, for a convolution's kernel and the bias that follows it in memory.
inline void descend_parts(const Team& team, const LayerShape& l, const float* gradient, float rate, float* numbers) {
  const int64_t total = l.kernel_numbers + l.bias_numbers;
  const int parts = l.num_parts();
  team.each(static_cast<int>(total / kLanes), [&](int unit) {
    const int64_t at = int64_t(unit) * kLanes;
    Vec sum = load(gradient + at);
    for (int part = 1; part < parts; ++part) sum += load(gradient + part * total + at);
    store(numbers + at, load(numbers + at) - rate * sum);
  });
}

class DirectConvolution final : public ConvolutionLayer {
 public:
  DirectConvolution(const Chain& chain, int index, Shared& shared, Arena& arena, bool has_derivative)
      : ConvolutionLayer(chain, index, shared) {
    gradient_ = arena.take(l_.num_parts() * (l_.kernel_numbers + l_.bias_numbers));
    for (const bool is_dot : {false, true}) {
      const bool is_used = has_derivative || !is_dot;
      flipped_[is_dot] = arena.take(is_used ? l_.kernel_numbers : 0);
      spread_[is_dot] = arena.take(is_used ? chain.images * l_.out.image : 0);
    }
  }

  void forward(const Team& team, const Step& step) override {
    const Term term{input(step), weights().kernel};
    convolution_layer<false>(team, chain_, index_, &term, 1, weights().bias, set_active(step),
                             step.slot + next_->input_at, rows(team));
  }

  void backward(const Team& team, const Step& step) override {
    set_gradient(team, next_gradient(step), step, false);
    team.meet();
    const Term change{input(step), spread_[false]}, back{spread_[false], flipped_[false]};
    kernel_gradient(team, chain_, index_, &change, 1, spread_[false], gradient_, shared_.runs[team.index].data());
    if (!is_first()) input_gradient(team, chain_, index_, &back, 1, step.slot + l_.gradient_at);
  }

  void forward_derivative(const Team& team, const Step& step) override {
    const Term terms[] = {{input(step), adjoint().kernel}, {input_dot(), kept_kernel(step)}};
    convolution_layer<true>(team, chain_, index_, terms, num_terms(), adjoint().bias, active(step), next_input_dot(),
                            rows(team));
  }

  void backward_derivative(const Team& team, const Step& step) override {
    set_gradient(team, next_gradient(step), step, false);
    set_gradient(team, next_gradient_dot(), step, true);
    team.meet();
    const Term change[] = {{input(step), spread_[true]}, {input_dot(), spread_[false]}};
    kernel_gradient(team, chain_, index_, change, num_terms(), spread_[true], gradient_,
                    shared_.runs[team.index].data());
    if (is_first()) {
      const Term back[] = {{spread_[true], kept_kernel(step)}, {spread_[false], adjoint().kernel}};
      image_gradient(team, chain_, back, 2, -step.rate, step.images_adjoint);
    } else {
      const Term back[] = {{spread_[true], flipped_[false]}, {spread_[false], flipped_[true]}};
      input_gradient(team, chain_, index_, back, 2, gradient_dot());
    }
  }

  void descend(const Team& team, float rate, const Numbers& numbers) override {
    descend_parts(team, l_, gradient_, rate, numbers.kernel);
  }

  int64_t num_runs() const override { return int64_t(2) * chain_.images * l_.out_height; }

 private:
  void set_kernel(const Team& team, const float* kernel, bool is_dot) override {
    if (!is_first()) flip_kernel(team, l_, kernel, flipped_[is_dot]);
  }
  void set_gradient(const Team& team, const float* gradient, const Step& step, bool is_dot) {
    spread_gradient(team, chain_, index_, gradient, active(step), spread_[is_dot]);
  }

  float* gradient_;    // of kernel and bias, in parts
  float* flipped_[2];  // the kernel of the transpose, and its dot
  float* spread_[2];   // the gradient at the output, and its dot
};

}  // namespace workbench
