// Forward and backward pass of local training, for networks that are chains of layers: the same computation as
// `workbench.training.chain` and `workbench.training.sgd`, written for CPUs. The client's local steps are small and
// sequential, so overhead and memory traffic matter more than arithmetic. In this file
//
// - all S steps are one call; threads meet at a barrier between layers, which takes a few hundred nanoseconds;
// - a 3 x 3 convolution is computed in tiles of 2 x 2 pixels, with fewer than half of the multiplications;
// - ReLU and pooling are computed while a convolution's results are still in the cache;
// - a dense kernel is stored in panels of 64 inputs, each of which stays with one thread; the backward pass reverts its
//   updates one by one instead of storing every version of it;
// - threads divide the results between them, never the terms of a sum, so results do not depend on their number.
//
// Letters: S steps, M images, H, W, C as in Python; F output channels; K inputs and O outputs of a dense layer.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <vector>

#include "convolution.h"
#include "dense.h"
#include "layers.h"
#include "threads.h"
#include "tiles.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

void descend(const Team& team, const Layer& l, const float* gradient, float rate, const Numbers& numbers) {
  if (l.by_tiles)
    descend_tiles(team, l, gradient, rate, numbers);
  else if (!l.is_dense)
    descend_parts(team, l, gradient, rate, numbers.kernel);
}

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

// The operands of convolutions; for tiled convolutions, all are in the basis of the tiles.
struct Operands {
  std::vector<float*> flipped;  // kernels of the transposes
  std::vector<float*> spread;   // gradients at the outputs
  std::vector<float*> tiles;    // inputs, tiled convolutions only
  std::vector<float*> kernels;  // tiled convolutions only

  Operands(const Chain& chain, Arena& arena) {
    for (const Layer& l : chain.layers) {
      const int64_t num_tiles = l.by_tiles ? chain.images * l.num_tiles() : 0;
      const int64_t kernel = l.by_tiles   ? kBasis * matrix_step(l.channels, l.filters)
                             : l.is_dense ? 0
                                          : l.kernel_numbers;
      const int64_t outputs = l.is_dense ? 0 : chain.images * l.out.image;
      flipped.push_back(arena.take(kernel));
      spread.push_back(arena.take(l.by_tiles ? kBasis * matrix_step(num_tiles, l.filters) : outputs));
      tiles.push_back(arena.take(l.by_tiles ? kBasis * matrix_step(num_tiles, l.channels) : 0));
      kernels.push_back(arena.take(l.by_tiles ? kernel : 0));
    }
  }

  void set_kernel(const Team& team, const Chain& chain, int i, const float* kernel) {
    const Layer& l = chain.layers[i];
    if (l.by_tiles)
      kernel_to_basis(team, l, kernel, kernels[i], flipped[i]);
    else if (i)
      flip_kernel(team, l, kernel, flipped[i]);
  }

  void set_gradient(const Team& team, const Chain& chain, int i, const float* gradient, const Bits* active) {
    if (chain.layers[i].by_tiles)
      tiles_of_gradient(team, chain, i, gradient, active, spread[i]);
    else
      spread_gradient(team, chain, i, gradient, active, spread[i]);
  }
};

// Working memory of both passes.
struct Scratch {
  float* images;  // the batch, in the grid of the first layer
  Operands operands;
  std::vector<float*> gradient;   // of kernels, in parts or in the basis of tiles
  std::vector<float*> patches;    // contributions of tiles to the gradients of inputs
  float* partial;                 // sums of dense layers
  std::vector<float*> outputs;    // [M, O] of dense layers
  std::vector<float*> at_output;  // [M, O] gradients at those outputs
  // One for each thread: rows of a convolution or products of tiles, and the terms of the sums of a kernel gradient.
  std::vector<float*> rows;
  std::vector<std::vector<Run>> runs;

  Scratch(const Chain& chain, Arena& arena, int num_threads) : operands(chain, arena) {
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
    for (int thread = 0; thread < num_threads; ++thread) {
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

// If the trajectory has only one step, every step overwrites it: nothing is stored for the backward pass.
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
      team.each(l.chunks,
                [&](int chunk) { partial_outputs(l, chain.images, &term, 1, chunk, s.partial, rows, [](int) {}); });
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
        const Term change{l.by_tiles ? here.tiles[i] : input(i), here.spread[i]}, back{here.spread[i], here.flipped[i]};
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

// Working memory of the backward pass: derivatives along the adjoint ("dots").
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

// `weights` are initially those after the last step; `adjoint` is v of `workbench.training.sgd`, updated in every step.
void train_backward(Team team, const Chain& chain, const Batches& batches, std::vector<Numbers>& weights,
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
      const int num_terms = i ? 2 : 1;  // the images have no derivative along the adjoint
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
        const Term back[] = {{along.spread[i], i ? here.flipped[i] : kernel(i)},
                             {here.spread[i], i ? along.flipped[i] : adjoint[i].kernel}};
        if (l.by_tiles) {
          tiles_kernel_gradient(team, chain, i, change, 2, along.spread[i], s.gradient[i]);
          tiles_input_gradient(team, chain, i, back, 2, s.patches[i], rows);
          team.meet();
          add_tiles(team, chain, i, s.patches[i], d.gradient[i]);
        } else {
          kernel_gradient(team, chain, i, change, num_terms, along.spread[i], s.gradient[i], s.runs[team.index].data());
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
// The functions that XLA calls
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

ffi::Error out_of_memory() {
  return ffi::Error(ffi::ErrorCode::kResourceExhausted, "not enough memory to simulate the client's training");
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
  const std::vector<int> cores = cores_for_threads();
  Scratch scratch(chain, arena, static_cast<int>(cores.size()));
  run_team(cores, [&](const Team& team) { train(team, chain, batches, weights, scratch, trajectory, kept_steps); });
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
  // The trajectory is only read.
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
  const std::vector<int> cores = cores_for_threads();
  Scratch scratch(chain, arena, static_cast<int>(cores.size()));
  Dots dots(chain, arena);
  run_team(cores, [&](const Team& team) {
    train_backward(team, chain, batches, weights, adjoint, scratch, dots, trajectory, images_adjoint);
  });
  give_weights(chain, adjoint, out.data());
  return ffi::Error::Success();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace

// The number of floats stored for each local step.
extern "C" int64_t workbench_slot(const int64_t* numbers, int64_t count, int64_t images) {
  return make_chain(numbers, count, static_cast<int>(images)).slot;
}

#define WORKBENCH_HANDLER ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("layers")
XLA_FFI_DEFINE_HANDLER_SYMBOL(workbench_forward, forward, WORKBENCH_HANDLER);
XLA_FFI_DEFINE_HANDLER_SYMBOL(workbench_backward, backward, WORKBENCH_HANDLER);
