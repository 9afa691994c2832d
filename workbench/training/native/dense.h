// Dense layers, with kernels stored as panels [K / 64, O, 64].

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "layer.h"
#include "memory.h"
#include "threads.h"
#include "vectors.h"

namespace workbench {

inline void to_panels(const LayerShape& l, const float* kernel, float* panels) {
  for (int k = 0; k < l.inputs; ++k)
    for (int o = 0; o < l.outputs; ++o)
      panels[(int64_t(k / kPanel) * l.outputs + o) * kPanel + k % kPanel] = kernel[int64_t(k) * l.outputs + o];
}

inline void from_panels(const LayerShape& l, const float* panels, float* kernel) {
  for (int k = 0; k < l.inputs; ++k)
    for (int o = 0; o < l.outputs; ++o)
      kernel[int64_t(k) * l.outputs + o] = panels[(int64_t(k / kPanel) * l.outputs + o) * kPanel + k % kPanel];
}

template <int kImages, int kOutputs>
void dots_of(const LayerShape& l, const Term* terms, int num_terms, int first_panel, int last_panel, int m, int o,
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

// The panels of one part of the sum over inputs; a thread has the same panels in every step.
inline std::pair<int, int> panels_of(const LayerShape& l, int chunk) {
  return {l.panels * chunk / l.chunks, l.panels * (chunk + 1) / l.chunks};
}

// A batch of one image: panels in memory order, with the sums in `lanes`, [O, kLanes].
inline void add_dots_of_one(const LayerShape& l, const Term* terms, int num_terms, int panel, float* lanes) {
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

// [M, O] for the panels of one chunk; `before` is called with each panel before it is used.
template <class Before>
void partial_outputs(const LayerShape& l, int images, const Term* terms, int num_terms, int chunk, float* partial,
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

// [M, O]: the sum of the bias and all parts.
inline void add_outputs(const LayerShape& l, int images, const float* partial, const float* bias, float* out) {
  const int64_t total = int64_t(images) * l.outputs;
  for (int64_t i = 0; i < total; ++i) out[i] = bias[i % l.outputs];
  for (int chunk = 0; chunk < l.chunks; ++chunk)
    for (int64_t i = 0; i < total; ++i) out[i] += partial[chunk * total + i];
}

template <int kTerms>
void change_panel_by_one(const LayerShape& l, const Term* terms, float scale, int panel, float* numbers) {
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
inline void change_panel(const LayerShape& l, int images, const Term* terms, int num_terms, float scale, int panel,
                         float* panels) {
  float* numbers = panels + int64_t(panel) * l.outputs * kPanel;
  if (images == 1)
    return with_count<2>(
        num_terms, [&](auto count) { change_panel_by_one<decltype(count)::value>(l, terms, scale, panel, numbers); });
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
inline void panel_input_gradient(const LayerShape& l, int images, const Term* terms, int num_terms, int panel,
                                 float* out) {
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
  // With few images, there are registers for more vectors of the panel.
  if (images <= kRows / 2)
    for (int k = 0; k < kPanel; k += 4 * kLanes) multiply(std::integral_constant<int, 4>{}, k, 0, images);
  else
    for (int k = 0; k < kPanel; k += 2 * kLanes)
      in_blocks(images, [&](int m, int count) { multiply(std::integral_constant<int, 2>{}, k, m, count); });
}

// [M, O] to the padded input of the next layer, with ReLU; for a derivative, `where` is that input in the forward pass.
inline void dense_activation(const LayerShape& next, int images, const float* outputs, const float* where, float* out) {
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

// From the gradient of the next layer's input to the gradient of this layer's output [M, O].
inline void dense_activation_transpose(const LayerShape& next, int images, const float* gradient, const float* where,
                                       float* out) {
  for (int m = 0; m < images; ++m)
    for (int o = 0; o < next.inputs; ++o) {
      const int64_t at = m * next.padded_inputs() + o;
      out[int64_t(m) * next.inputs + o] = where[at] > 0.0f ? gradient[at] : 0.0f;
    }
}

inline void add_rows(int images, int outputs, const float* gradient, float scale, float* bias) {
  for (int o = 0; o < outputs; ++o) {
    float sum = 0.0f;
    for (int m = 0; m < images; ++m) sum += gradient[int64_t(m) * outputs + o];
    bias[o] += scale * sum;
  }
}

inline void softmax_gradient(const Chain& chain, const float* logits, const int32_t* labels, const float* share,
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

// The derivative of `softmax_gradient`, from that of the logits.
inline void softmax_derivative(const Chain& chain, const float* logits_dot, const float* share,
                               const float* probabilities, float* out) {
  const int classes = chain.classes;
  for (int m = 0; m < chain.images; ++m) {
    const float* z = logits_dot + int64_t(m) * classes;
    const float* p = probabilities + int64_t(m) * classes;
    float mean = 0.0f;
    for (int k = 0; k < classes; ++k) mean += p[k] * z[k];
    for (int k = 0; k < classes; ++k) out[int64_t(m) * classes + k] = p[k] * (z[k] - mean) * share[m];
  }
}

class DenseLayer final : public Layer {
 public:
  DenseLayer(const Chain& chain, int index, Shared& shared, Arena& arena, bool has_derivative)
      : Layer(chain, index, shared) {
    const int64_t numbers = int64_t(chain.images) * l_.outputs;
    partial_ = arena.take(l_.chunks * numbers);
    outputs_ = arena.take(numbers);
    at_output_ = arena.take(numbers);
    at_output_dot_ = arena.take(has_derivative ? numbers : 0);
  }

  void forward(const Team& team, const Step& step) override {
    const Term term{input(step), weights().kernel};
    team.each(l_.chunks, [&](int chunk) {
      partial_outputs(l_, chain_.images, &term, 1, chunk, partial_, rows(team), [](int) {});
    });
    team.meet();
    if (!team.is_first()) return;
    add_outputs(l_, chain_.images, partial_, weights().bias, outputs_);
    if (next_)
      dense_activation(*next_, chain_.images, outputs_, nullptr, step.slot + next_->input_at);
    else
      softmax_gradient(chain_, outputs_, step.labels, step.share, step.slot + chain_.probabilities_at,
                       step.slot + chain_.logit_gradient_at);
  }

  void backward(const Team& team, const Step& step) override {
    if (next_) {
      set_at_output(team, step);
      team.meet();
    }
    const float* gradient = at_output(step);
    const Term back{gradient, weights().kernel}, change{input(step), gradient};
    float* at_input = is_first() ? nullptr : step.slot + l_.gradient_at;
    change_weights(team, at_input, &back, 1, &change, 1, -step.rate, weights());
    if (team.is_first()) add_rows(chain_.images, l_.outputs, gradient, -step.rate, weights().bias);
  }

  void begin_derivative(const Team& team, const Step& step) override {
    if (next_) set_at_output(team, step);
  }

  // Also reverts the change of the weights: they are those before this step afterwards.
  void forward_derivative(const Team& team, const Step& step) override {
    const Term terms[] = {{input(step), adjoint().kernel}, {input_dot(), weights().kernel}};
    const Term change{input(step), at_output(step)};
    team.each(l_.chunks, [&](int chunk) {
      partial_outputs(l_, chain_.images, terms, num_terms(), chunk, partial_, rows(team), [&](int panel) {
        change_panel(l_, chain_.images, &change, 1, step.rate, panel, weights().kernel);
      });
    });
    team.meet();
    if (!team.is_first()) return;
    add_outputs(l_, chain_.images, partial_, adjoint().bias, outputs_);
    if (next_)
      dense_activation(*next_, chain_.images, outputs_, next_input(step), next_input_dot());
    else
      softmax_derivative(chain_, outputs_, step.share, step.kept + chain_.probabilities_at, at_output_dot_);
  }

  void backward_derivative(const Team& team, const Step& step) override {
    if (next_) {
      if (team.is_first())
        dense_activation_transpose(*next_, chain_.images, next_gradient_dot(), next_input(step), at_output_dot_);
      team.meet();
    }
    const Term back[] = {{at_output_dot_, weights().kernel}, {at_output(step), adjoint().kernel}};
    const Term change[] = {{input(step), at_output_dot_}, {input_dot(), at_output(step)}};
    change_weights(team, gradient_dot(), back, 2, change, num_terms(), -step.rate, adjoint());
    if (team.is_first()) add_rows(chain_.images, l_.outputs, at_output_dot_, -step.rate, adjoint().bias);
    if (is_first()) {
      team.meet();
      team.each(chain_.images, [&](int m) {
        float* to = step.images_adjoint + int64_t(m) * l_.inputs;
        for (int64_t i = 0; i < l_.inputs; ++i) to[i] = -step.rate * gradient_dot()[m * l_.in.image + i];
      });
    }
  }

  int64_t num_row_floats() const override { return int64_t(l_.outputs) * kLanes; }

 private:
  const float* at_output(const Step& step) const { return next_ ? at_output_ : step.kept + chain_.logit_gradient_at; }

  void set_at_output(const Team& team, const Step& step) {
    if (team.is_first())
      dense_activation_transpose(*next_, chain_.images, next_gradient(step), next_input(step), at_output_);
  }

  // The gradient at the input, unless `at_input` is null, and then the change of the kernel, panel by panel.
  void change_weights(const Team& team, float* at_input, const Term* back, int num_back, const Term* change,
                      int num_change, float scale, const Numbers& numbers) {
    team.each_backwards(l_.chunks, [&](int chunk) {
      const auto [from, to] = panels_of(l_, chunk);
      for (int panel = to; panel-- > from;) {
        if (at_input) panel_input_gradient(l_, chain_.images, back, num_back, panel, at_input);
        change_panel(l_, chain_.images, change, num_change, scale, panel, numbers.kernel);
      }
    });
  }

  float* partial_;        // parts of the sums
  float* outputs_;        // [M, O], and their dots in the backward pass
  float* at_output_;      // [M, O] the gradient at the outputs
  float* at_output_dot_;  // [M, O]
};

}  // namespace workbench
