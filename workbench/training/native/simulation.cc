// The functions that XLA calls. Everything that comes from there is checked before it is used: a wrong argument becomes
// an error of XLA, because reading beyond an array would end the interpreter.

#include "simulation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "chain.h"
#include "memory.h"
#include "xla/ffi/api/ffi.h"

namespace workbench {
namespace {

namespace ffi = xla::ffi;

using Sizes = std::vector<int64_t>;

ffi::AnyBuffer buffer_of(ffi::AnyBuffer argument) { return argument; }
ffi::AnyBuffer buffer_of(ffi::Result<ffi::AnyBuffer> result) { return *result; }

// Arguments or results in order, each of which must have the expected shape and number type.
template <class Buffers>
class Reader {
 public:
  Reader(const char* kind, const Buffers& buffers) : kind_(kind), buffers_(buffers) {}

  ffi::AnyBuffer peek() const {
    const auto found = buffers_.template get<ffi::AnyBuffer>(next_);
    if (!found.has_value()) throw Unsupported(name() + " is missing");
    return buffer_of(*found);
  }

  template <class T>
  T* take(const Sizes& sizes) {
    const ffi::AnyBuffer buffer = peek();
    const auto found = buffer.dimensions();
    const bool is_type = buffer.element_type() == (std::is_same_v<T, int32_t> ? ffi::S32 : ffi::F32);
    if (!is_type || !std::equal(found.begin(), found.end(), sizes.begin(), sizes.end()))
      throw Unsupported(name() + " has the wrong shape or number type");
    ++next_;
    return buffer.template typed_data<T>();
  }

  // (kernel, bias) of every layer.
  std::vector<float*> take_weights(const Chain& chain) {
    std::vector<float*> arrays;
    for (const LayerShape& l : chain.layers) {
      arrays.push_back(
          take<float>(l.is_dense() ? Sizes{l.inputs, l.outputs} : Sizes{l.size, l.size, l.channels, l.filters}));
      arrays.push_back(take<float>({l.bias_numbers}));
    }
    return arrays;
  }

  void finish() const {
    if (buffers_.size() != next_) throw Unsupported(name() + " is one too many");
  }

 private:
  std::string name() const { return std::string(kind_) + " " + std::to_string(next_); }

  const char* kind_;
  const Buffers& buffers_;
  size_t next_ = 0;
};

// What both functions are given first: (images, labels, share, rate).
struct Given {
  Reader<ffi::RemainingArgs> arguments;
  Chain chain;
  Batches batches;

  Given(const ffi::RemainingArgs& args, ffi::Span<const int64_t> network) : arguments("argument", args) {
    const auto found = arguments.peek().dimensions();
    const Sizes sizes(found.begin(), found.end());
    require(sizes.size() == 5 && sizes[0] <= std::numeric_limits<int32_t>::max(), "the images are not [S, M, H, W, C]");
    chain = make_chain(network.begin(), static_cast<int64_t>(network.size()), sizes[1]);
    const Grid& grid = chain.layers[0].in;
    batches.steps = static_cast<int>(sizes[0]);
    batches.images = arguments.take<float>({sizes[0], sizes[1], grid.height, grid.width, grid.channels});
    batches.labels = arguments.take<int32_t>({sizes[0], sizes[1]});
    batches.share = arguments.take<float>({sizes[0], sizes[1]});
    batches.rate = *arguments.take<float>({});
  }
};

// Runs the work; what it throws becomes an error of XLA.
template <class Work>
ffi::Error guarded(Work work) {
  try {
    work();
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "not enough memory to simulate the client's training");
  } catch (const Unsupported& problem) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string("compiled local training: ") + problem.what());
  } catch (const std::exception& problem) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("compiled local training: ") + problem.what());
  }
}

// (images, labels, share, rate, weights...) to (weights..., trajectory).
ffi::Error forward(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Span<const int64_t> network, bool keep) {
  return guarded([&] {
    Given given(args, network);
    const auto weights = given.arguments.take_weights(given.chain);
    given.arguments.finish();
    Reader results("result", rets);
    const auto out = results.take_weights(given.chain);
    const int64_t num_slots = keep ? given.batches.steps : 1;
    float* trajectory = results.take<float>({num_slots, given.chain.slot});
    results.finish();
    ask_for_large_pages(trajectory, num_slots * given.chain.slot * sizeof(float));
    Simulation(given.chain, given.batches, weights.data(), nullptr).train(trajectory, num_slots, out.data());
  });
}

// (images, labels, share, rate, trajectory, final weights..., adjoint...) to (adjoint..., images' adjoint).
ffi::Error backward(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Span<const int64_t> network) {
  return guarded([&] {
    Given given(args, network);
    const int64_t steps = given.batches.steps;
    const float* trajectory = given.arguments.take<float>({steps, given.chain.slot});
    const auto weights = given.arguments.take_weights(given.chain);
    const auto adjoint = given.arguments.take_weights(given.chain);
    given.arguments.finish();
    Reader results("result", rets);
    const auto out = results.take_weights(given.chain);
    const Grid& grid = given.chain.layers[0].in;
    float* images = results.take<float>({steps, given.chain.images, grid.height, grid.width, grid.channels});
    results.finish();
    Simulation(given.chain, given.batches, weights.data(), adjoint.data()).go_back(trajectory, out.data(), images);
  });
}

}  // namespace
}  // namespace workbench

#pragma GCC visibility push(default)

// The number of floats stored for each local step; 0 for a network or a batch size that cannot be computed here.
extern "C" int64_t workbench_slot(const int64_t* network, int64_t count, int64_t images) {
  try {
    return workbench::make_chain(network, count, images).slot;
  } catch (const std::exception&) {
    return 0;
  }
}

#define WORKBENCH_HANDLER \
  xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<xla::ffi::Span<const int64_t>>("network")
XLA_FFI_DEFINE_HANDLER_SYMBOL(workbench_forward, workbench::forward, WORKBENCH_HANDLER.Attr<bool>("keep"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(workbench_backward, workbench::backward, WORKBENCH_HANDLER);

#pragma GCC visibility pop
