// Layers, and the memory layout of their arrays.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "vectors.h"

namespace {

constexpr int kPanel = 64;  // inputs of a dense layer that are contiguous in memory
constexpr int kChunks = 8;  // parts of a long sum, added in a fixed order whichever thread computed them

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

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

struct Layer {
  bool is_dense, pool;
  int size, padding, channels, filters;  // of a convolution
  int out_height, out_width;             // of a convolution, before pooling
  int after_height, after_width;         // after pooling
  int inputs, outputs, panels, chunks;   // of a dense layer
  bool by_tiles;                         // whether a convolution is computed as in tiles.h
  Grid in;                               // its input
  Grid out;                              // the gradient at a convolution's output, with the border its transpose needs
  int shift;                             // where the transpose begins in that border
  int64_t kernel_numbers, bias_numbers;
  // Offsets in a step's slot of the trajectory, in floats.
  int64_t kernel_at, active_at, input_at, gradient_at;

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
  std::vector<Layer> layers;
  int64_t slot;  // floats stored for each step
  int64_t logit_gradient_at, probabilities_at;
  int classes;
};

// From integers: (H, W, C) of an image, then (is dense, k or K, padding, C, F or O, pooling) of each layer.
Chain make_chain(const int64_t* numbers, int64_t count, int images) {
  Chain chain{images, {}, 0, 0, 0, 0};
  int height = numbers[0], width = numbers[1], channels = numbers[2];
  const auto take = [&](int64_t floats) {
    const int64_t at = chain.slot;
    chain.slot += round_up(floats, 16);
    return at;
  };
  for (const int64_t* n = numbers + 3; n < numbers + count; n += 6) {
    Layer l{};
    l.is_dense = n[0];
    l.pool = n[5];
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

// The weights of a layer in working memory: kernel (or panels), then bias.
struct Numbers {
  float* kernel;
  float* bias;
};

// For arrays that are written and read once or twice: without large pages, page faults take a tenth of the time.
void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kPage = 4096;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(memory) + bytes) / kPage * kPage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // only a hint
#endif
}

// Arrays that live as long as a call. They are initialised to zero, so borders need no further treatment.
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

void clear_border(const Grid& grid, float* images, int m) {
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

void copy_images(const Grid& grid, const float* from, float* to, int m) {
  const int64_t line = int64_t(grid.width) * grid.channels;
  for (int y = 0; y < grid.height; ++y)
    std::memcpy(to + grid.at(m, y, 0), from + (int64_t(m) * grid.height + y) * line, line * sizeof(float));
}

}  // namespace
