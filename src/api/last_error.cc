#include "api/last_error.h"

#include <cstddef>
#include <cstring>

namespace runmax::api {

namespace {

struct LastError {
  char message[4096];
  char field[128];
};
thread_local LastError last_error;

void copy(const char* from, char* to, size_t size) {
  std::strncpy(to, from, size - 1);
  to[size - 1] = '\0';
}

}  // namespace

runmax_status report(const Status& status) {
  copy(status.message().c_str(), last_error.message, sizeof last_error.message);
  copy(status.field().c_str(), last_error.field, sizeof last_error.field);
  return status.code();
}

runmax_status report_out_of_memory() {
  copy("memory: an allocation failed, more free memory is needed", last_error.message,
       sizeof last_error.message);
  copy("memory", last_error.field, sizeof last_error.field);
  return RUNMAX_OUT_OF_MEMORY;
}

const char* last_message() { return last_error.message; }
const char* last_field() { return last_error.field; }

}  // namespace runmax::api
