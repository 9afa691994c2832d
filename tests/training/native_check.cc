// The compiled training without Python and XLA, for the sanitizers of `make native-check`: against plain loops in
// double precision, several at once, and networks that it must refuse.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "chain.h"
#include "simulation.h"

namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr double kRate = 0.05, kTolerance = 2e-5, kDerivativeTolerance = 2e-3;

void check(bool condition, const std::string& message) {
  if (condition) return;
  std::fprintf(stderr, "native_check: %s\n", message.c_str());
  std::exit(1);
}

// A layer as the library gets it: dense, rows, columns, inputs, outputs, padding, ReLU, pooling.
struct Described {
  int64_t dense, rows, columns, inputs, outputs, padding, relu, pool;
};

Described convolution(int64_t size, int64_t channels, int64_t filters, int64_t padding, bool pool) {
  return {0, size, size, channels, filters, padding, 1, pool};
}
Described dense(int64_t inputs, int64_t outputs, bool relu) { return {1, 1, 1, inputs, outputs, 0, relu, 0}; }

struct Network {
  std::string name;
  int64_t height, width, channels;
  std::vector<Described> layers;

  std::vector<int64_t> numbers() const {
    std::vector<int64_t> all = {height, width, channels};
    for (const Described& l : layers)
      all.insert(all.end(), {l.dense, l.rows, l.columns, l.inputs, l.outputs, l.padding, l.relu, l.pool});
    return all;
  }
  int64_t image_floats() const { return height * width * channels; }
};

std::vector<Network> networks() {
  return {
      {"tiles",
       6,
       8,
       2,
       {convolution(3, 2, 16, 1, false), convolution(3, 16, 32, 1, true), convolution(3, 32, 16, 1, false),
        dense(3 * 4 * 16, 9, true), dense(9, 5, false)}},
      {"direct",
       5,
       5,
       3,
       {convolution(2, 3, 16, 1, true), convolution(1, 16, 48, 0, false), dense(3 * 3 * 48, 4, false)}},
      {"dense", 3, 5, 1, {dense(15, 70, true), dense(70, 3, false)}},
  };
}

// Where a layer stands: its input, and its output before pooling.
struct Place {
  int64_t height, width, out_height, out_width;
};

std::vector<Place> places(const Network& network) {
  std::vector<Place> found;
  int64_t height = network.height, width = network.width;
  for (const Described& l : network.layers) {
    const int64_t grown = 2 * l.padding + 1;
    found.push_back({height, width, l.dense ? 1 : height + grown - l.rows, l.dense ? 1 : width + grown - l.columns});
    height = found.back().out_height / (l.pool ? 2 : 1);
    width = found.back().out_width / (l.pool ? 2 : 1);
  }
  return found;
}

// Calls work(output, input, kernel) with the indices of every product of a layer.
template <class Work>
void each_product(const Described& l, const Place& p, Work work) {
  if (l.dense) {
    for (int64_t i = 0; i < l.inputs; ++i)
      for (int64_t o = 0; o < l.outputs; ++o) work(o, i, i * l.outputs + o);
    return;
  }
  for (int64_t y = 0; y < p.out_height; ++y)
    for (int64_t x = 0; x < p.out_width; ++x)
      for (int64_t row = 0; row < l.rows; ++row)
        for (int64_t column = 0; column < l.columns; ++column) {
          const int64_t in_y = y + row - l.padding, in_x = x + column - l.padding;
          if (in_y < 0 || in_y >= p.height || in_x < 0 || in_x >= p.width) continue;
          for (int64_t c = 0; c < l.inputs; ++c)
            for (int64_t f = 0; f < l.outputs; ++f)
              work((y * p.out_width + x) * l.outputs + f, (in_y * p.width + in_x) * l.inputs + c,
                   ((row * l.columns + column) * l.inputs + c) * l.outputs + f);
        }
}

// The pooled pixel of each output.
int64_t pooled(const Described& l, const Place& p, int64_t output) {
  const int64_t f = output % l.outputs, x = output / l.outputs % p.out_width, y = output / l.outputs / p.out_width;
  return (y / 2 * (p.out_width / 2) + x / 2) * l.outputs + f;
}

// Adds one image's gradient to `gradient`, (kernel, bias) of every layer.
void add_gradient(const Network& network, const std::vector<Doubles>& weights, const double* image, int label,
                  double share, std::vector<Doubles>& gradient) {
  const std::vector<Place> at = places(network);
  const size_t count = network.layers.size();
  std::vector<Doubles> inputs = {Doubles(image, image + network.image_floats())}, outputs;
  for (size_t i = 0; i < count; ++i) {
    const Described& l = network.layers[i];
    Doubles z(at[i].out_height * at[i].out_width * l.outputs);
    for (size_t o = 0; o < z.size(); ++o) z[o] = weights[2 * i + 1][o % l.outputs];
    each_product(l, at[i], [&](int64_t o, int64_t in, int64_t k) { z[o] += inputs[i][in] * weights[2 * i][k]; });
    Doubles next(l.pool ? z.size() / 4 : z.size());
    for (size_t o = 0; o < z.size(); ++o)
      next[l.pool ? pooled(l, at[i], o) : o] += std::max(z[o], 0.0) * (l.pool ? 0.25 : 1.0);
    outputs.push_back(z);
    inputs.push_back(next);
  }
  Doubles dz = outputs.back();
  const double most = *std::max_element(dz.begin(), dz.end());
  double total = 0.0;
  for (double& z : dz) total += z = std::exp(z - most);
  for (size_t k = 0; k < dz.size(); ++k) dz[k] = share * (dz[k] / total - (static_cast<int>(k) == label));
  for (size_t i = count; i-- > 0;) {
    const Described& l = network.layers[i];
    Doubles dx(inputs[i].size());
    each_product(l, at[i], [&](int64_t o, int64_t in, int64_t k) {
      gradient[2 * i][k] += inputs[i][in] * dz[o];
      dx[in] += weights[2 * i][k] * dz[o];
    });
    for (size_t o = 0; o < dz.size(); ++o) gradient[2 * i + 1][o % l.outputs] += dz[o];
    if (i == 0) return;
    const Described& before = network.layers[i - 1];
    dz.assign(outputs[i - 1].size(), 0.0);
    for (size_t o = 0; o < dz.size(); ++o)
      if (outputs[i - 1][o] > 0.0) dz[o] = before.pool ? 0.25 * dx[pooled(before, at[i - 1], o)] : dx[o];
  }
}

// A client with random images; the last image of a batch of several is padding.
struct Client {
  Network network;
  int steps, images;
  Floats pixels, share;
  std::vector<int32_t> labels;
  std::vector<Floats> weights, adjoint;

  Client(const Network& network, int steps, int images) : network(network), steps(steps), images(images) {
    std::mt19937 generator(static_cast<unsigned>(7 * images + steps));
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t count, double scale) {
      Floats numbers(count);
      for (float& number : numbers) number = static_cast<float>(scale) * normal(generator);
      return numbers;
    };
    pixels = draw(steps * images * network.image_floats(), 1.0);
    for (int i = 0; i < steps * images; ++i) {
      const int present = images > 1 ? images - 1 : 1;
      labels.push_back(i % static_cast<int>(network.layers.back().outputs));
      share.push_back(i % images < present ? 1.0f / static_cast<float>(present) : 0.0f);
    }
    for (const Described& l : network.layers) {
      const int64_t inputs = l.rows * l.columns * l.inputs;
      for (const int64_t count : {inputs * l.outputs, l.outputs}) {
        weights.push_back(draw(count, 1.0 / std::sqrt(static_cast<double>(inputs))));
        adjoint.push_back(draw(count, 1.0));
      }
    }
  }

  // The weights after training, in plain loops.
  std::vector<Doubles> trained(const Doubles& images_given) const {
    std::vector<Doubles> now;
    for (const Floats& array : weights) now.emplace_back(array.begin(), array.end());
    for (int step = 0; step < steps; ++step) {
      std::vector<Doubles> gradient;
      for (const Doubles& array : now) gradient.emplace_back(array.size());
      for (int m = step * images; m < (step + 1) * images; ++m)
        add_gradient(network, now, images_given.data() + m * network.image_floats(), labels[m], share[m], gradient);
      for (size_t a = 0; a < now.size(); ++a)
        for (size_t i = 0; i < now[a].size(); ++i) now[a][i] -= float(kRate) * gradient[a][i];
    }
    return now;
  }

  // <adjoint, weights after training>, whose derivative the backward pass computes.
  double along_adjoint(const Doubles& images_given) const {
    const std::vector<Doubles> end = trained(images_given);
    double sum = 0.0;
    for (size_t a = 0; a < end.size(); ++a)
      for (size_t i = 0; i < end[a].size(); ++i) sum += end[a][i] * adjoint[a][i];
    return sum;
  }
};

std::vector<const float*> readable(const std::vector<Floats>& arrays) {
  std::vector<const float*> pointers;
  for (const Floats& array : arrays) pointers.push_back(array.data());
  return pointers;
}

std::vector<float*> writable(std::vector<Floats>& arrays) {
  std::vector<float*> pointers;
  for (Floats& array : arrays) pointers.push_back(array.data());
  return pointers;
}

struct Results {
  std::vector<Floats> final, before;
  Floats images;
};

Results run(const Client& client, int num_threads = 1) {
  const std::vector<int64_t> numbers = client.network.numbers();
  const auto chain = workbench::make_chain(numbers.data(), static_cast<int64_t>(numbers.size()), client.images);
  const workbench::Batches batches{client.steps, client.pixels.data(), client.labels.data(), client.share.data(),
                                   static_cast<float>(kRate)};
  const std::vector<int> cores(num_threads, workbench::kAnyCore);
  Results results{client.weights, client.weights, Floats(client.pixels.size())};
  Floats trajectory(client.steps * chain.slot);
  workbench::Simulation(chain, batches, readable(client.weights).data(), nullptr, cores)
      .train(trajectory.data(), client.steps, writable(results.final).data());
  workbench::Simulation(chain, batches, readable(results.final).data(), readable(client.adjoint).data(), cores)
      .go_back(trajectory.data(), writable(results.before).data(), results.images.data());
  return results;
}

template <class Found, class Right>
double distance(const Found& found, const Right& right) {
  double error = 0.0, most = 1e-30;
  for (size_t i = 0; i < right.size(); ++i) {
    error = std::max(error, std::abs(double(found[i]) - double(right[i])));
    most = std::max(most, std::abs(double(right[i])));
  }
  return error / most;
}

void check_numbers(const Client& client, const Results& results) {
  const std::string name = client.network.name + " with " + std::to_string(client.images) + " images: ";
  const Doubles pixels(client.pixels.begin(), client.pixels.end());
  const std::vector<Doubles> right = client.trained(pixels);
  for (size_t a = 0; a < right.size(); ++a)
    check(distance(results.final[a], right[a]) < kTolerance, name + "array " + std::to_string(a) + " is wrong");
  Doubles found, slopes;
  for (size_t i = 0; i < pixels.size(); i += std::max<size_t>(1, pixels.size() / 5)) {
    constexpr double kStep = 1e-5;
    Doubles moved[2] = {pixels, pixels};
    moved[0][i] += kStep;
    moved[1][i] -= kStep;
    slopes.push_back((client.along_adjoint(moved[0]) - client.along_adjoint(moved[1])) / (2 * kStep));
    found.push_back(results.images[i]);
  }
  check(distance(found, slopes) < kDerivativeTolerance, name + "the derivative in the images is wrong");
}

bool is_same(const Results& a, const Results& b) {
  return a.final == b.final && a.before == b.before && a.images == b.images;
}

// On any core, so that there are teams also where this program may use only one.
void check_teams(const Client& client, const Results& alone) {
  for (const int num_threads : {2, 3})
    check(is_same(run(client, num_threads), alone),
          client.network.name + " differs with " + std::to_string(num_threads) + " threads");
}

void check_several_at_once(const std::vector<Client>& clients, const std::vector<Results>& alone) {
  std::vector<Results> together(clients.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < clients.size(); ++i) threads.emplace_back([&, i] { together[i] = run(clients[i], 2); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < clients.size(); ++i)
    check(is_same(together[i], alone[i]), clients[i].network.name + " differs beside others");
}

void check_refused(const std::vector<int64_t>& numbers, const std::string& name) {
  try {
    workbench::make_chain(numbers.data(), static_cast<int64_t>(numbers.size()), 3);
  } catch (const workbench::Unsupported&) {
    return;
  }
  check(false, name + " is not refused");
}

void check_refusals() {
  const std::vector<int64_t> good = networks()[0].numbers();
  const int64_t large = int64_t(1) << 23;
  for (size_t i = 0; i < good.size(); ++i)
    for (const int64_t value : {int64_t(-1), int64_t(1) << 62, large}) {
      std::vector<int64_t> numbers = good;
      numbers[i] = value;
      // Any number but 0 means yes, and a network may have many classes.
      const size_t field = i < 3 ? 1 : (i - 3) % 8;
      const bool is_allowed = field == 0 || field == 6 || field == 7 || i == good.size() - 4;
      if (value == large && is_allowed) continue;
      check_refused(numbers, "number " + std::to_string(i) + " = " + std::to_string(value));
    }
  for (size_t count = 0; count < good.size(); ++count)
    check_refused({good.begin(), good.begin() + static_cast<int64_t>(count)}, std::to_string(count) + " numbers");
  // Their product has more than 64 bits.
  std::vector<int64_t> huge = good;
  std::fill(huge.begin(), huge.begin() + 3, large);
  check_refused(huge, "an image of 2^69 numbers");
}

}  // namespace

int main() {
  std::vector<Client> clients;
  std::vector<Results> alone;
  for (const Network& network : networks())
    for (const int images : {1, 3}) clients.emplace_back(network, 3, images);
  // More rows of a kernel, times blocks of them, than 32 bits count.
  clients.emplace_back(Network{"wide", 1, 1, 200000, {convolution(1, 200000, 16, 0, false), dense(16, 3, false)}}, 1,
                       1);
  for (const Client& client : clients) {
    alone.push_back(run(client));
    check_numbers(client, alone.back());
    check_teams(client, alone.back());
  }
  check_several_at_once(clients, alone);
  check_refusals();
  std::printf("%zu clients are right\n", clients.size());
}
