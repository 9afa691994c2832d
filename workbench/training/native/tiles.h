// Convolutions with 3 x 3 kernels, in tiles of 2 x 2 pixels (Winograd's F(2 x 2, 3 x 3)).
//
// A tile of outputs depends on 4 x 4 inputs: 36 products for each pair of channels. If x, w and y are transformed to
// another basis, with 4 x 4 numbers each, 16 products are enough: y = A' ((G w G') * (B' x B)) A. All three maps are
// linear, so the gradients are their transposes, with the same 16 products: dw = G' ((B' x B) * (A dy A')) G,
// dx = B ((G w G') * (A dy A')) B'. The 16 matrices are consecutive in memory: [16, tiles, C] for inputs,
// [16, tiles, F] for outputs, [16, C, F] for kernels.

#pragma once

#include <algorithm>
#include <cstdint>

#include "convolution.h"
#include "layer.h"
#include "memory.h"
#include "threads.h"
#include "vectors.h"

namespace workbench {

constexpr int kBasis = 16;
// With a gap between matrices: those whose size is a power of 2 would otherwise map to the same cache lines.
inline int64_t matrix_step(int64_t rows, int64_t columns) { return rows * columns + 16; }

// Maps along one axis, for one vector of channels at a time.
struct InputToBasis {
  static constexpr int kFrom = 4, kTo = 4;
  static void map(const Vec* x, Vec* v) {
    v[0] = x[0] - x[2], v[1] = x[1] + x[2], v[2] = x[2] - x[1], v[3] = x[1] - x[3];
  }
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

// One of these maps along both axes: get(row, column) to put(row, column, value).
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

// Images of a batch whose tiles stay in the caches together.
struct Block {
  int index, first, images;
  int64_t rows;  // tiles of a full block: the rows of its matrices
  int tiles(const LayerShape& l) const { return images * l.num_tiles(); }
  int64_t step(int columns) const { return matrix_step(rows, columns); }
};

constexpr int64_t kBlockFloats = 1 << 21;

inline int images_per_block(const LayerShape& l, int images) {
  const int64_t floats = int64_t(l.num_tiles()) * kBasis * (2 * l.channels + l.filters);
  return static_cast<int>(std::clamp<int64_t>(kBlockFloats / floats, 1, images));
}
inline int num_image_blocks(const LayerShape& l, int images) {
  const int each = images_per_block(l, images);
  return (images + each - 1) / each;
}
inline Block image_block(const LayerShape& l, int images, int index) {
  const int each = images_per_block(l, images), first = index * each;
  return {index, first, std::min(each, images - first), int64_t(each) * l.num_tiles()};
}

struct Tile {
  int m, y, x;  // the image, and the position in its grid of tiles
  Tile(const LayerShape& l, const Block& block, int index)
      : m(block.first + index / l.num_tiles()),
        y(index % l.num_tiles() / (l.out_width / 2)),
        x(index % (l.out_width / 2)) {}
};

// `count` tiles of the input in the basis, starting at `first`.
inline void tiles_of_input(const LayerShape& l, const Block& block, const float* in, int first, int count, float* out) {
  const int64_t step = block.step(l.channels);
  for (int index = first; index < first + count; ++index) {
    const Tile tile(l, block, index);
    const float* from = in + tile.m * l.in.image + 2 * tile.y * l.in.row + 2 * tile.x * l.channels;
    float* to = out + int64_t(index) * l.channels;
    for (int c = 0; c < l.channels; c += kLanes)
      on_both_axes<InputToBasis>(
          [&](int row, int column) { return load(from + row * l.in.row + column * l.channels + c); },
          [&](int row, int column, Vec value) { store(to + (4 * row + column) * step + c, value); });
  }
}

// The gradient at the convolution's output in the basis, from the gradient after ReLU and pooling.
inline void tiles_of_gradient(const Team& team, const Chain& chain, int index, const Block& block,
                              const float* gradient, const Bits* active, float* out) {
  const LayerShape& l = chain.layers[index];
  const Grid& next = chain.layers[index + 1].in;
  const int64_t step = block.step(l.filters);
  team.each(block.tiles(l), [&](int unit) {
    const Tile tile(l, block, unit);
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
inline void kernel_to_basis(const Team& team, const LayerShape& l, const float* kernel, float* straight,
                            float* transposed) {
  const int64_t numbers = int64_t(l.channels) * l.filters, step = matrix_step(l.channels, l.filters);
  const int squares = l.filters / kLanes;
  team.each(l.channels / kLanes * squares, [&](int unit) {
    const int first_c = unit / squares * kLanes, first_f = unit % squares * kLanes;
    Vec rows[9][kLanes], columns[9][kLanes];
    for (int offset = 0; offset < 9; ++offset) {
      const float* from = kernel + offset * numbers + int64_t(first_c) * l.filters + first_f;
      for (int c = 0; c < kLanes; ++c) rows[offset][c] = load(from + int64_t(c) * l.filters);
      transpose(rows[offset], columns[offset]);
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

// Products of `count` tiles, [16, kRows, kVectors vectors starting at `column`]: [tiles, inner] times [inner, outer].
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

// Images are transformed to tiles before they are multiplied.
struct TiledTerm {
  const float* images;
  float* tiles;
  const float* kernel;
};

// A convolution with bias, ReLU and pooling.
template <bool is_derivative>
void tiled_layer(const Team& team, const Chain& chain, int index, const TiledTerm* given, int num_terms,
                 const float* bias, Active<is_derivative>* active, float* out, float* products) {
  const LayerShape& l = chain.layers[index];
  const Grid& next = chain.layers[index + 1].in;
  const Block whole = image_block(l, chain.images, 0);
  const Block last = image_block(l, chain.images, num_image_blocks(l, chain.images) - 1);
  const int units = num_blocks(whole.tiles(l));
  with_vectors(l.filters, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value, kWidth = kVectors * kLanes;
    team.each(last.index * units + num_blocks(last.tiles(l)), [&](int unit) {
      const Block block = image_block(l, chain.images, unit / units);
      const auto [first, count] = block_of(block.tiles(l), unit % units);
      Term terms[2];
      for (int term = 0; term < num_terms; ++term) {
        float* tiles = given[term].tiles + block.index * kBasis * block.step(l.channels);
        tiles_of_input(l, block, given[term].images, first, count, tiles);
        terms[term] = {tiles, given[term].kernel};
      }
      for (int filter = 0; filter < l.filters; filter += kWidth) {
        multiply_tiles<kVectors>(terms, num_terms, first, count, l.channels, l.filters, block.step(l.channels), filter,
                                 products);
        for (int i = 0; i < count; ++i) {
          const Tile tile(l, block, first + i);
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

// The contribution of each tile to the gradient of the input: [tiles, 16, C]. `add_tiles` sums them.
inline void tiles_input_gradient(const Team& team, const LayerShape& l, const Block& block, const Term* terms,
                                 int num_terms, float* out, float* products) {
  const int total = block.tiles(l);
  with_vectors(l.channels, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value, kWidth = kVectors * kLanes;
    const int parts = l.channels / kWidth;
    team.each(num_blocks(total) * parts, [&](int unit) {
      const auto [first, count] = block_of(total, unit / parts);
      const int channel = unit % parts * kWidth;
      multiply_tiles<kVectors>(terms, num_terms, first, count, l.filters, l.channels, block.step(l.filters), channel,
                               products);
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

// Every pixel is in up to four tiles, which are added in a fixed order whichever thread computed them.
inline void add_tiles(const Team& team, const LayerShape& l, const Block& block, const float* tiles, float* out) {
  const int rows = l.out_height / 2, columns = l.out_width / 2;
  team.each(block.images * l.in.height, [&](int unit) {
    const int m = unit / l.in.height, y = unit % l.in.height + l.in.border;
    for (int at_x = 0; at_x < l.in.width; ++at_x) {
      const int x = at_x + l.in.border;
      const float* parts[4];
      int num_parts = 0;
      for (int tile_y = std::max(0, y / 2 - 1); tile_y <= std::min(y / 2, rows - 1); ++tile_y)
        for (int tile_x = std::max(0, x / 2 - 1); tile_x <= std::min(x / 2, columns - 1); ++tile_x)
          parts[num_parts++] = tiles + (((int64_t(m) * rows + tile_y) * columns + tile_x) * kBasis +
                                        4 * (y - 2 * tile_y) + x - 2 * tile_x) *
                                           l.channels;
      for (int c = 0; c < l.channels; c += kLanes) {
        Vec sum = {};
        for (int part = 0; part < num_parts; ++part) sum += load(parts[part] + c);
        store(out + l.in.at(block.first + m, y - l.in.border, at_x) + c, sum);
      }
    }
  });
}

// The gradient of the kernel, [16, C, F], followed by that of the bias: the sum over blocks, of which this adds one.
inline void tiles_kernel_gradient(const Team& team, const LayerShape& l, const Block& block, const Term* terms,
                                  int num_terms, const float* bias_gradient_of, float* out) {
  static const float one = 1.0f;
  const int total = block.tiles(l), blocks = num_blocks(l.channels);
  const int64_t kernel_step = matrix_step(l.channels, l.filters);
  const int64_t input_step = block.step(l.channels), output_step = block.step(l.filters);
  const auto add = [&](float* to, Vec value) { store(to, block.index ? load(to) + value : value); };
  with_vectors(l.filters, [&](auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    const int chunks = l.filters / (kVectors * kLanes);
    team.each((kBasis * blocks + 1) * chunks, [&](int unit) {
      const int matrix = unit / chunks / blocks, filter = unit % chunks * kVectors * kLanes;
      Run runs[2];
      if (matrix == kBasis) {
        // In the basis, the entry (1, 1) of a tile is the sum over its pixels.
        runs[0] = {&one, bias_gradient_of + 5 * output_step + filter};
        return tile<kVectors>(1, runs, 1, total, {0, 0, l.filters}, [&](int, int lane, Vec value) {
          add(out + kBasis * kernel_step + filter + lane, value);
        });
      }
      const auto [first, count] = block_of(l.channels, unit / chunks % blocks);
      for (int term = 0; term < num_terms; ++term)
        runs[term] = {terms[term].inputs + matrix * input_step + first,
                      terms[term].other + matrix * output_step + filter};
      float* to = out + matrix * kernel_step + int64_t(first) * l.filters + filter;
      tile<kVectors>(count, runs, num_terms, total, {1, l.channels, l.filters},
                     [&](int row, int lane, Vec value) { add(to + int64_t(row) * l.filters + lane, value); });
    });
  });
}

// numbers -= rate * gradient, for kernel and bias.
inline void descend_tiles(const Team& team, const LayerShape& l, const float* gradient, float rate,
                          const Numbers& numbers) {
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

// All operands are in the basis.
class TiledConvolution final : public ConvolutionLayer {
 public:
  TiledConvolution(const Chain& chain, int index, Shared& shared, Arena& arena, bool has_derivative)
      : ConvolutionLayer(chain, index, shared) {
    const int num_blocks = num_image_blocks(l_, chain.images);
    const Block block = image_block(l_, chain.images, 0);
    const int64_t kernel = kBasis * matrix_step(l_.channels, l_.filters);
    gradient_ = arena.take(kernel + l_.filters);
    patches_ = arena.take(block.rows * kBasis * l_.channels);
    for (const bool is_dot : {false, true}) {
      const bool is_used = has_derivative || !is_dot;
      transposed_[is_dot] = arena.take(is_used ? kernel : 0);
      gradients_[is_dot] = arena.take(is_used ? kBasis * block.step(l_.filters) : 0);
      tiles_[is_dot] = arena.take(is_used ? num_blocks * kBasis * block.step(l_.channels) : 0);
      kernel_[is_dot] = arena.take(is_used ? kernel : 0);
    }
  }

  void forward(const Team& team, const Step& step) override {
    const TiledTerm term{input(step), tiles_[false], kernel_[false]};
    tiled_layer<false>(team, chain_, index_, &term, 1, weights().bias, set_active(step), step.slot + next_->input_at,
                       rows(team));
  }

  void backward(const Team& team, const Step& step) override {
    each_block([&](const Block& block) {
      set_gradient(team, block, next_gradient(step), step, false);
      team.meet();
      const Term change{tiles(block, false), gradients_[false]}, back{gradients_[false], transposed_[false]};
      add_gradients(team, block, &change, &back, 1, gradients_[false], step.slot + l_.gradient_at);
    });
  }

  void forward_derivative(const Team& team, const Step& step) override {
    const TiledTerm terms[] = {{input(step), tiles_[false], kernel_[true]},
                               {input_dot(), tiles_[true], kernel_[false]}};
    tiled_layer<true>(team, chain_, index_, terms, 2, adjoint().bias, active(step), next_input_dot(), rows(team));
  }

  void backward_derivative(const Team& team, const Step& step) override {
    each_block([&](const Block& block) {
      set_gradient(team, block, next_gradient(step), step, false);
      set_gradient(team, block, next_gradient_dot(), step, true);
      team.meet();
      const Term change[] = {{tiles(block, false), gradients_[true]}, {tiles(block, true), gradients_[false]}};
      const Term back[] = {{gradients_[true], transposed_[false]}, {gradients_[false], transposed_[true]}};
      add_gradients(team, block, change, back, 2, gradients_[true], gradient_dot());
    });
  }

  void descend(const Team& team, float rate, const Numbers& numbers) override {
    descend_tiles(team, l_, gradient_, rate, numbers);
  }

  int64_t num_row_floats() const override { return int64_t(kBasis) * kRows * 2 * kLanes; }

 private:
  void set_kernel(const Team& team, const float* kernel, bool is_dot) override {
    kernel_to_basis(team, l_, kernel, kernel_[is_dot], transposed_[is_dot]);
  }
  void set_gradient(const Team& team, const Block& block, const float* gradient, const Step& step, bool is_dot) {
    tiles_of_gradient(team, chain_, index_, block, gradient, active(step), gradients_[is_dot]);
  }

  template <class Work>
  void each_block(Work work) const {
    for (int block = 0; block < num_image_blocks(l_, chain_.images); ++block)
      work(image_block(l_, chain_.images, block));
  }

  const float* tiles(const Block& block, bool is_dot) const {
    return tiles_[is_dot] + block.index * kBasis * block.step(l_.channels);
  }

  // The gradients of the weights and of the input.
  void add_gradients(const Team& team, const Block& block, const Term* change, const Term* back, int num_terms,
                     const float* of_bias, float* at_input) {
    tiles_kernel_gradient(team, l_, block, change, num_terms, of_bias, gradient_);
    tiles_input_gradient(team, l_, block, back, num_terms, patches_, rows(team));
    team.meet();
    add_tiles(team, l_, block, patches_, at_input);
  }

  float* gradient_;  // of the kernel and of the bias
  float* patches_;   // contributions of tiles to the gradient of the input
  // Each with its dot.
  float* transposed_[2];
  float* gradients_[2];  // at the output, of one block
  float* tiles_[2];      // of the input
  float* kernel_[2];
};

}  // namespace workbench
