/* Preloaded before the library: runs what was asked for and then spoils one element of the output,
 * so that `runmax check` has something to find. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "runmax/runmax.h"

typedef runmax_status (*execute_function)(const runmax_plan*, const runmax_args*, void*, size_t,
                                          void*);

__attribute__((visibility("default"))) runmax_status runmax_execute(const runmax_plan* plan,
                                                                    const runmax_args* args,
                                                                    void* workspace,
                                                                    size_t workspace_size,
                                                                    void* stream) {
  execute_function original = NULL;
  *(void**)&original = dlsym(RTLD_NEXT, "runmax_execute");
  const runmax_status status = original(plan, args, workspace, workspace_size, stream);
  if (status == RUNMAX_OK) ((float*)args->out)[0] += 0.01f;
  return status;
}
