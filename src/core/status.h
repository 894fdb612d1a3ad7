// Errors as values. Nothing in the library throws on purpose; std::bad_alloc is caught at the C
// boundary (src/api).
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "runmax/runmax.h"

namespace runmax {

// What a call answers: OK, or a code, the field it is about, and one line
// "FIELD: what is wrong (value), what is allowed" (more lines may follow for unsupported requests).
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(runmax_status code, std::string field, std::string message)
      : code_(code), field_(std::move(field)), message_(std::move(message)) {}

  static Status ok() { return {}; }
  // rule: "is 3, must be a multiple of kv_heads (2)"; the field is put in front.
  static Status invalid(std::string field, const std::string& rule) {
    std::string message = field + ": " + rule;
    return {RUNMAX_INVALID_ARGUMENT, std::move(field), std::move(message)};
  }
  static Status unsupported(std::string field, const std::string& rule) {
    std::string message = field + ": " + rule;
    return {RUNMAX_UNSUPPORTED, std::move(field), std::move(message)};
  }

  bool is_ok() const { return code_ == RUNMAX_OK; }
  runmax_status code() const { return code_; }
  const std::string& field() const { return field_; }
  const std::string& message() const { return message_; }

 private:
  runmax_status code_ = RUNMAX_OK;
  std::string field_;
  std::string message_;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : data_(std::move(value)) {}
  Result(Status status) : data_(std::move(status)) { assert(!std::get<Status>(data_).is_ok()); }

  bool is_ok() const { return std::holds_alternative<T>(data_); }
  T& value() { return std::get<T>(data_); }
  const T& value() const { return std::get<T>(data_); }
  const Status& status() const { return std::get<Status>(data_); }

 private:
  std::variant<T, Status> data_;
};

// Returns from the enclosing function when `expression` is not OK.
#define RUNMAX_RETURN_IF_ERROR(expression)   \
  do {                                       \
    ::runmax::Status status_ = (expression); \
    if (!status_.is_ok()) return status_;    \
  } while (false)

}  // namespace runmax
