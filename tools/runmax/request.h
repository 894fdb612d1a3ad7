// From tensors in files and flags to a runmax_problem and its runmax_args.
//
//   Request request(options, open_inputs(options));   what is asked: described and validated
//   request.load(device);                             memory on the device, inputs read into it
//   ... execute plans of request.forward(), request.backward() with request.args() ...
//   request.outputs()                                 what to write to files
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device.h"
#include "input_file.h"
#include "options.h"
#include "runmax/runmax.h"

namespace runmax::cli {

// The tensors of IN, or of the .npy flags. Refuses unknown names and types.
std::vector<FileTensor> open_inputs(const Options& options);

class Request {
 public:
  Request(const Options& options, std::vector<FileTensor> inputs);

  const runmax_problem& forward() const { return forward_; }
  bool wants_backward() const { return wants_backward_; }
  const runmax_problem& backward() const { return backward_; }

  // The device has to outlive the request, whose memory lies on it.
  void load(runmax_device* device);
  const runmax_args& args() const { return args_; }

  // A tensor to write: shape and order as they go to the file, contiguous there and in memory.
  struct Output {
    std::string name;
    runmax_dtype dtype;
    std::vector<int64_t> file_shape;
    const void* pointer;  // on the device
    size_t bytes;
  };
  std::vector<Output> outputs() const;

 private:
  struct Operand {
    runmax_tensor tensor{};
    std::vector<int64_t> file_shape;
    const FileTensor* source = nullptr;  // null: an output
    bool wanted = false;                 // an output that the caller wants written
    DeviceBuffer memory;
  };

  const FileTensor* find(const std::string& name) const;
  void add_inputs();
  void add_outputs();
  void add_output(const std::string& name, runmax_dtype dtype, std::vector<int64_t> file_shape);
  void set_flags();
  runmax_tensor describe(const std::string& name, runmax_dtype dtype,
                         const std::vector<int64_t>& file_shape, bool fortran_order) const;
  void read_input(runmax_device* device, const Operand& operand) const;

  Options options_;
  std::vector<FileTensor> inputs_;
  bool packed_ = false;
  bool swaps_heads_ = false;  // bshd: files hold [batch, len, heads, dim]
  bool wants_backward_ = false;
  std::map<std::string, Operand> operands_;
  runmax_problem forward_{};
  runmax_problem backward_{};
  runmax_args args_{};
};

// Reads device memory in pieces: visit(bytes, count) for each, in order.
void for_each_piece(runmax_device* device, const void* pointer, size_t bytes,
                    const std::function<void(const void*, size_t)>& visit);

}  // namespace runmax::cli
