// The layers of a network: which can be computed here, and the memory layout of their arrays.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <vector>

#include "vectors.h"

namespace workbench {

constexpr int kPanel = 64;             // inputs of a dense layer that are contiguous in memory
constexpr int kChunks = 8;             // parts of a long sum, added in a fixed order whichever thread computed them
constexpr int kMostKernelRows = 32;    // of a convolution
constexpr int kChannelUnit = 16;       // the output channels of a convolution are a multiple: whole vectors of any size
constexpr int64_t kImageNumbers = 3;   // H, W, C
constexpr int64_t kLayerNumbers = 8;   // is dense, kernel rows, kernel columns, C or K, F or O, padding, ReLU, pooling
constexpr int64_t kLargest = 1 << 24;  // of these numbers

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// M images with a border of zeros.
struct Grid {
  int height, width, channels, border;
  int64_t row, image;
  Grid() = default;
  Grid(int height, int width, int channels, int border, int64_t unit = 1)
      : height(height),
        width(width),
        channels(channels),
        border(border),
        row(int64_t(width + 2 * border) * channels),
        image(round_up((height + 2 * border) * row, unit)) {}
  int64_t at(int m, int y, int x) const { return m * image + (y + border) * row + int64_t(x + border) * channels; }
};

inline void clear_border(const Grid& grid, float* images, int m) {
  float* image = images + m * grid.image;
  const int64_t side = int64_t(grid.border) * grid.channels;
  const int64_t end = (grid.height + 2 * grid.border) * grid.row;
  if (side) {
    std::fill(image, image + grid.border * grid.row, 0.0f);
    std::fill(image + (grid.height + grid.border) * grid.row, image + end, 0.0f);
    for (int y = 0; y < grid.height; ++y) {
      float* row = image + (y + grid.border) * grid.row;
      std::fill(row, row + side, 0.0f);
      std::fill(row + grid.row - side, row + grid.row, 0.0f);
    }
  }
  std::fill(image + end, image + grid.image, 0.0f);
}

inline void copy_images(const Grid& grid, const float* from, float* to, int m) {
  const int64_t line = int64_t(grid.width) * grid.channels;
  for (int y = 0; y < grid.height; ++y)
    std::memcpy(to + grid.at(m, y, 0), from + (int64_t(m) * grid.height + y) * line, line * sizeof(float));
}

enum class Kind { kDense, kDirect, kTiled };  // dense.h, convolution.h, tiles.h

struct LayerShape {
  Kind kind;
  bool pool;
  int size, padding, channels, filters;  // of a convolution
  int out_height, out_width;             // of a convolution, before pooling
  int after_height, after_width;         // after pooling
  int inputs, outputs, panels, chunks;   // of a dense layer
  Grid in;                               // its input
  Grid out;                              // the gradient at a convolution's output, with the border its transpose needs
  int shift;                             // where the transpose begins in that border
  int64_t kernel_numbers, bias_numbers;
  // Offsets in a step's slot of the trajectory, in floats.
  int64_t kernel_at, active_at, input_at, gradient_at;

  bool is_dense() const { return kind == Kind::kDense; }
  int num_parts() const { return channels >= kLanes ? 1 : 4; }        // parts of the sums of a kernel gradient
  int num_tiles() const { return out_height / 2 * (out_width / 2); }  // per image
  // The index of the mask that marks where the ReLU of a convolution is active in a vector of channels.
  int64_t active(int m, int y, int x, int filter) const {
    return (((int64_t(m) * out_height + y) * out_width + x) * filters + filter) / kLanes;
  }
  int64_t padded_inputs() const { return int64_t(panels) * kPanel; }
};

struct Chain {
  int images;  // M
  std::vector<LayerShape> layers;
  int64_t slot;  // floats stored for each step
  int64_t logit_gradient_at, probabilities_at;
  int classes;
};

// Thrown for a network that cannot be computed here, and for arrays that do not fit it.
struct Unsupported : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

inline void require(bool condition, const char* message) {
  if (!condition) throw Unsupported(message);
}

// The size of an array; units of work and offsets within a batch are counted with 32 bits.
inline int64_t small_product(std::initializer_list<int64_t> factors) {
  double exact = 1.0;
  for (const int64_t factor : factors) exact *= static_cast<double>(factor);
  require(exact <= std::numeric_limits<int32_t>::max(), "an array is too large");
  return static_cast<int64_t>(exact);
}

inline LayerShape dense_shape(const int64_t* numbers, const Grid& in) {
  LayerShape l{};
  l.kind = Kind::kDense;
  l.inputs = static_cast<int>(numbers[3]);
  l.outputs = static_cast<int>(numbers[4]);
  require(l.inputs == small_product({in.height, in.width, in.channels}), "a dense layer does not fit its input");
  require(numbers[1] == 1 && numbers[2] == 1 && !numbers[5] && !numbers[7], "a dense layer has a window or pooling");
  l.panels = (l.inputs + kPanel - 1) / kPanel;
  l.chunks = std::min(kChunks, l.panels);
  l.in = Grid(in.height, in.width, in.channels, 0, kPanel);
  l.kernel_numbers = small_product({l.padded_inputs(), l.outputs});
  l.bias_numbers = l.outputs;
  return l;
}

inline LayerShape convolution_shape(const int64_t* numbers, const Grid& in, bool is_first) {
  LayerShape l{};
  l.size = static_cast<int>(numbers[1]);
  l.channels = static_cast<int>(numbers[3]);
  l.filters = static_cast<int>(numbers[4]);
  l.padding = static_cast<int>(numbers[5]);
  l.pool = numbers[7];
  require(l.size == numbers[2] && l.size <= kMostKernelRows, "a kernel is not square, or too large");
  require(l.channels == in.channels, "a convolution does not fit its input");
  require(l.filters % kChannelUnit == 0, "the output channels of a convolution are not a multiple of 16");
  l.in = Grid(in.height, in.width, in.channels, l.padding);
  l.out_height = in.height + 2 * l.padding - l.size + 1;
  l.out_width = in.width + 2 * l.padding - l.size + 1;
  const int step = l.pool ? 2 : 1;
  require(std::min(l.out_height, l.out_width) > 0, "a kernel is larger than its input");
  require(l.out_height % step == 0 && l.out_width % step == 0, "pooling needs an even height and width");
  const bool has_tiles = !is_first && l.size == 3 && l.out_height % 2 == 0 && l.out_width % 2 == 0;
  l.kind = has_tiles ? Kind::kTiled : Kind::kDirect;
  const int border = l.size - 1 - l.padding;
  l.out = Grid(l.out_height, l.out_width, l.filters, std::max(0, border));
  l.shift = l.out.border - border;
  l.kernel_numbers = small_product({l.size, l.size, l.channels, l.filters});
  l.bias_numbers = l.filters;
  l.after_height = l.out_height / step;
  l.after_width = l.out_width / step;
  return l;
}

// From integers: kImageNumbers of an image, then kLayerNumbers of each layer. What cannot be computed here is said in
// this function and in the two above, and nowhere else.
inline Chain make_chain(const int64_t* numbers, int64_t count, int64_t images) {
  const int64_t num_layers = (count - kImageNumbers) / kLayerNumbers;
  require(count > kImageNumbers && (count - kImageNumbers) % kLayerNumbers == 0, "the network is incomplete");
  require(std::all_of(numbers, numbers + count, [](int64_t n) { return 0 <= n && n <= kLargest; }) &&
              std::all_of(numbers, numbers + kImageNumbers, [](int64_t n) { return n > 0; }) && images > 0 &&
              images <= kLargest,
          "a size is too small or too large");
  Chain chain{static_cast<int>(images), {}, 0, 0, 0, 0};
  const auto take = [&](int64_t floats) {
    const int64_t at = chain.slot;
    chain.slot += round_up(floats, 16);
    return at;
  };
  small_product({numbers[0], numbers[1], numbers[2]});
  Grid in(static_cast<int>(numbers[0]), static_cast<int>(numbers[1]), static_cast<int>(numbers[2]), 0);
  for (int64_t index = 0; index < num_layers; ++index) {
    const int64_t* n = numbers + kImageNumbers + index * kLayerNumbers;
    const bool is_first = index == 0, is_last = index == num_layers - 1;
    require(n[1] > 0 && n[2] > 0 && n[3] > 0 && n[4] > 0, "a size is too small or too large");
    require(n[0] || !(is_last || (!is_first && chain.layers.back().is_dense())), "a convolution follows a dense layer");
    require(bool(n[6]) != is_last, "every layer but the last has a ReLU");
    small_product({images, in.height + 2 * n[5], in.width + 2 * n[5], in.channels});
    LayerShape l = n[0] ? dense_shape(n, in) : convolution_shape(n, in, is_first);
    small_product({images, l.in.image});
    if (l.is_dense()) {
      in = Grid(1, 1, l.outputs, 0);
    } else {
      in = Grid(l.after_height, l.after_width, l.filters, 0);
      small_product({images, l.out_height + 2 * l.out.border, l.out_width + 2 * l.out.border, l.filters});
      l.kernel_at = take(l.kernel_numbers);
      l.active_at = take((l.active(chain.images, 0, 0, 0) * sizeof(Bits) + 3) / 4);
    }
    small_product({images, in.image});
    if (!is_first) {
      l.input_at = take(images * l.in.image);
      l.gradient_at = take(images * l.in.image);
    }
    chain.layers.push_back(l);
  }
  chain.classes = in.channels;
  chain.logit_gradient_at = take(images * chain.classes);
  chain.probabilities_at = take(images * chain.classes);
  return chain;
}

}  // namespace workbench
