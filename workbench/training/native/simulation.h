// Forward and backward pass of local training, for networks that are chains of layers: the same computation as
// `workbench.training.chain` and `workbench.training.sgd`, written for CPUs. The client's local steps are small and
// sequential, so overhead and memory traffic matter more than arithmetic. Here
//
// - all S steps are one call; threads meet at a barrier between layers, which takes a few hundred nanoseconds;
// - a 3 x 3 convolution is computed in tiles of 2 x 2 pixels, with fewer than half of the multiplications;
// - ReLU and pooling are computed while a convolution's results are still in the cache;
// - a dense kernel is stored in panels of 64 inputs, each of which stays with one thread; the backward pass reverts its
//   updates one by one instead of storing every version of it;
// - threads divide the results between them, never the terms of a sum, so results do not depend on their number.
//
// Letters: S steps, M images, H, W, C as in Python; F output channels; K inputs and O outputs of a dense layer.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "chain.h"
#include "convolution.h"
#include "dense.h"
#include "layer.h"
#include "memory.h"
#include "threads.h"
#include "tiles.h"

namespace workbench {

// The batches of all steps.
struct Batches {
  int steps;
  const float* images;    // [S, M, H, W, C]
  const int32_t* labels;  // [S, M]
  const float* share;     // [S, M]
  float rate;
};

inline std::unique_ptr<Layer> make_layer(const Chain& chain, int index, Shared& shared, Arena& arena,
                                         bool has_derivative) {
  switch (chain.layers[index].kind) {
    case Kind::kDense:
      return std::make_unique<DenseLayer>(chain, index, shared, arena, has_derivative);
    case Kind::kDirect:
      return std::make_unique<DirectConvolution>(chain, index, shared, arena, has_derivative);
    case Kind::kTiled:
      return std::make_unique<TiledConvolution>(chain, index, shared, arena, has_derivative);
  }
  throw Unsupported("unknown kind of layer");
}

// One call of `train` or `go_back`: the layers and their working memory.
class Simulation {
 public:
  // Arrays of weights are (kernel, bias) of every layer; `adjoint` is null in the forward pass.
  Simulation(const Chain& chain, const Batches& batches, const float* const* weights, const float* const* adjoint,
             std::vector<int> cores = cores_for_threads())
      : chain_(chain), batches_(batches), cores_(std::move(cores)) {
    const bool has_derivative = adjoint != nullptr;
    shared_.images = arena_.take(chain.images * chain.layers[0].in.image);
    shared_.weights = take_weights(weights);
    if (has_derivative) shared_.adjoint = take_weights(adjoint);
    int64_t row_floats = 0, runs = 0;
    for (int i = 0; i < static_cast<int>(chain.layers.size()); ++i) {
      const int64_t numbers = has_derivative ? chain.images * chain.layers[i].in.image : 0;
      shared_.input_dot.push_back(arena_.take(numbers));
      shared_.gradient_dot.push_back(arena_.take(numbers));
      layers_.push_back(make_layer(chain, i, shared_, arena_, has_derivative));
      row_floats = std::max(row_floats, layers_.back()->num_row_floats());
      runs = std::max(runs, layers_.back()->num_runs());
    }
    for (size_t thread = 0; thread < cores_.size(); ++thread) {
      shared_.rows.push_back(arena_.take(row_floats));
      shared_.runs.emplace_back(runs);
    }
  }

  // The weights after all steps. If the trajectory has only one slot, every step overwrites it: nothing is stored for
  // the backward pass.
  void train(float* trajectory, int64_t num_slots, float* const* out) {
    run_team(cores_, [&](Team team) {
      for (int index = 0; index < batches_.steps; ++index) {
        float* slot = trajectory + index % num_slots * chain_.slot;
        const Step step = step_at(index, slot, slot, nullptr);
        load_images(team, step);
        clear_borders(team, step);
        for (auto& layer : layers_) layer->begin(team, step);
        team.meet();
        run_layers(team, step, &Layer::forward, &Layer::backward);
        for (size_t i = 0; i < layers_.size(); ++i) layers_[i]->descend(team, step.rate, shared_.weights[i]);
        if (!team.goes_on()) return;
      }
    });
    give_weights(shared_.weights, out);
  }

  // The adjoints of the initial weights and of the images. The weights are initially those after the last step; the
  // adjoint is v of `workbench.training.sgd`, updated in every step.
  void go_back(const float* trajectory, float* const* out, float* images_adjoint) {
    run_team(cores_, [&](Team team) {
      for (int index = batches_.steps - 1; index >= 0; --index) {
        const Step step = step_at(index, trajectory + index * chain_.slot, nullptr, images_adjoint);
        load_images(team, step);
        for (auto& layer : layers_) layer->begin_derivative(team, step);
        team.meet();
        run_layers(team, step, &Layer::forward_derivative, &Layer::backward_derivative);
        for (size_t i = 0; i < layers_.size(); ++i) layers_[i]->descend(team, step.rate, shared_.adjoint[i]);
        if (!team.goes_on()) return;
      }
    });
    give_weights(shared_.adjoint, out);
  }

 private:
  using Work = void (Layer::*)(const Team&, const Step&);

  // From the first layer to the last, and back.
  void run_layers(const Team& team, const Step& step, Work there, Work back) {
    for (auto layer = layers_.begin(); layer != layers_.end(); ++layer) {
      (layer->get()->*there)(team, step);
      team.meet();
    }
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      (layer->get()->*back)(team, step);
      team.meet();
    }
  }

  Step step_at(int index, const float* kept, float* slot, float* images_adjoint) const {
    const Grid& grid = chain_.layers[0].in;
    const int64_t first = int64_t(index) * chain_.images, floats = int64_t(grid.height) * grid.width * grid.channels;
    return {batches_.images + first * floats,
            batches_.labels + first,
            batches_.share + first,
            batches_.rate,
            kept,
            slot,
            images_adjoint ? images_adjoint + first * floats : nullptr};
  }

  void load_images(const Team& team, const Step& step) {
    team.each(chain_.images, [&](int m) { copy_images(chain_.layers[0].in, step.images, shared_.images, m); });
  }

  void clear_borders(const Team& team, const Step& step) {
    team.each(chain_.images, [&](int m) {
      for (size_t i = 1; i < chain_.layers.size(); ++i)
        clear_border(chain_.layers[i].in, step.slot + chain_.layers[i].input_at, m);
    });
  }

  std::vector<Numbers> take_weights(const float* const* given) {
    std::vector<Numbers> weights;
    for (size_t i = 0; i < chain_.layers.size(); ++i) {
      const LayerShape& l = chain_.layers[i];
      float* kernel = arena_.take(l.kernel_numbers + l.bias_numbers);
      weights.push_back({kernel, kernel + l.kernel_numbers});
      if (l.is_dense())
        to_panels(l, given[2 * i], kernel);
      else
        std::copy(given[2 * i], given[2 * i] + l.kernel_numbers, kernel);
      std::copy(given[2 * i + 1], given[2 * i + 1] + l.bias_numbers, weights.back().bias);
    }
    return weights;
  }

  void give_weights(const std::vector<Numbers>& weights, float* const* out) const {
    for (size_t i = 0; i < chain_.layers.size(); ++i) {
      const LayerShape& l = chain_.layers[i];
      if (l.is_dense())
        from_panels(l, weights[i].kernel, out[2 * i]);
      else
        std::copy(weights[i].kernel, weights[i].kernel + l.kernel_numbers, out[2 * i]);
      std::copy(weights[i].bias, weights[i].bias + l.bias_numbers, out[2 * i + 1]);
    }
  }

  const Chain& chain_;
  const Batches batches_;
  const std::vector<int> cores_;
  Arena arena_;
  Shared shared_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace workbench
