// What training asks of a layer of any kind.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "chain.h"
#include "threads.h"
#include "vectors.h"

namespace workbench {

// The weights of a layer in working memory: kernel (or panels), then bias.
struct Numbers {
  float* kernel;
  float* bias;
};

// One term of a sum of products: inputs and a kernel, or inputs and the gradient at an output.
struct Term {
  const float* inputs;
  const float* other;
};

// One local step.
struct Step {
  const float* images;
  const int32_t* labels;
  const float* share;
  float rate;
  const float* kept;      // its slot of the trajectory
  float* slot;            // the same, in order to store it; null in the backward pass
  float* images_adjoint;  // null in the forward pass
};

// Arrays that several layers use.
struct Shared {
  float* images;  // the batch, in the grid of the first layer
  std::vector<Numbers> weights, adjoint;
  // Derivatives along the adjoint ("dots"), of the input of every layer and of the gradient at it.
  std::vector<float*> input_dot, gradient_dot;
  // One for each thread: rows of a convolution or products of tiles, and the terms of the sums of a kernel gradient.
  std::vector<float*> rows;
  std::vector<std::vector<Run>> runs;
};

// Threads meet after each of these functions. Those of the derivative are the backward pass: the derivative of the
// gradient along the adjoint, from what `forward` and `backward` stored in the step's slot.
class Layer {
 public:
  Layer(const Chain& chain, int index, Shared& shared)
      : chain_(chain),
        index_(index),
        l_(chain.layers[index]),
        next_(index + 1 < static_cast<int>(chain.layers.size()) ? &chain.layers[index + 1] : nullptr),
        shared_(shared) {}
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  virtual void begin(const Team&, const Step&) {}
  virtual void forward(const Team&, const Step&) = 0;
  // Dense layers change their weights at once, convolutions in `descend`.
  virtual void backward(const Team&, const Step&) = 0;
  virtual void begin_derivative(const Team&, const Step&) = 0;
  virtual void forward_derivative(const Team&, const Step&) = 0;
  virtual void backward_derivative(const Team&, const Step&) = 0;
  // numbers -= rate * gradient, with the gradient of the last call of `backward` or `backward_derivative`.
  virtual void descend(const Team&, float, const Numbers&) {}

  // The sizes of `Shared::rows` and `Shared::runs`.
  virtual int64_t num_row_floats() const = 0;
  virtual int64_t num_runs() const { return 0; }

 protected:
  bool is_first() const { return index_ == 0; }
  const Numbers& weights() const { return shared_.weights[index_]; }
  const Numbers& adjoint() const { return shared_.adjoint[index_]; }
  const float* input(const Step& step) const { return is_first() ? shared_.images : step.kept + l_.input_at; }
  const float* next_input(const Step& step) const { return step.kept + next_->input_at; }
  const float* next_gradient(const Step& step) const { return step.kept + next_->gradient_at; }
  float* input_dot() const { return shared_.input_dot[index_]; }
  float* next_input_dot() const { return shared_.input_dot[index_ + 1]; }
  float* gradient_dot() const { return shared_.gradient_dot[index_]; }
  float* next_gradient_dot() const { return shared_.gradient_dot[index_ + 1]; }
  float* rows(const Team& team) const { return shared_.rows[team.index]; }
  // The images have no derivative along the adjoint, so sums of the first layer have one term less.
  int num_terms() const { return is_first() ? 1 : 2; }

  const Chain& chain_;
  const int index_;
  const LayerShape& l_;
  const LayerShape* next_;
  Shared& shared_;
};

// What both kinds of convolutions do.
class ConvolutionLayer : public Layer {
 public:
  using Layer::Layer;

  void begin(const Team& team, const Step& step) override {
    const auto [from, to] = team.part(l_.kernel_numbers / kLanes);
    const float* kernel = weights().kernel;
    std::copy(kernel + int64_t(from) * kLanes, kernel + int64_t(to) * kLanes,
              step.slot + l_.kernel_at + int64_t(from) * kLanes);
    set_kernel(team, kernel, false);
  }
  void begin_derivative(const Team& team, const Step& step) override {
    set_kernel(team, kept_kernel(step), false);
    set_kernel(team, adjoint().kernel, true);
  }
  int64_t num_row_floats() const override { return int64_t(2) * l_.out_width * 2 * kLanes; }

 protected:
  // The operands that depend on a kernel, or on its dot.
  virtual void set_kernel(const Team&, const float* kernel, bool is_dot) = 0;

  const float* kept_kernel(const Step& step) const { return step.kept + l_.kernel_at; }
  const Bits* active(const Step& step) const { return reinterpret_cast<const Bits*>(step.kept + l_.active_at); }
  Bits* set_active(const Step& step) const { return reinterpret_cast<Bits*>(step.slot + l_.active_at); }
};

}  // namespace workbench
