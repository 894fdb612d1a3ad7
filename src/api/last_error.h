// The calling thread's last error: fixed storage, so that reporting an error cannot fail.
#pragma once

#include "core/status.h"

namespace runmax::api {

// Records the status and returns its code.
runmax_status report(const Status& status);
runmax_status report_out_of_memory();

const char* last_message();
const char* last_field();

// Runs a function that returns Status; no exception leaves it.
template <class Function>
runmax_status guarded(Function&& function) noexcept {
  try {
    return report(function());
  } catch (...) {  // only std::bad_alloc can arrive here
    return report_out_of_memory();
  }
}

}  // namespace runmax::api
