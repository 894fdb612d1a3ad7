// The commands. Each returns its exit status, or throws Error.
#pragma once

#include "options.h"

namespace runmax::cli {

int attend(const Options& options);
int check(const Options& options);
int explain(const Options& options);
int list(const Options& options);

}  // namespace runmax::cli
