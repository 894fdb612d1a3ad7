/* runmax: exact attention, tile by tile with an online softmax. The stable C interface (C11).
 *
 *   out = softmax(scale * q k^T + ...) v      without ever writing the score matrix to memory
 *
 * Flow: describe shapes, types and options in a runmax_problem; make a runmax_plan for a
 * runmax_device; execute it as often as wanted with pointers (runmax_args) and a workspace.
 * docs/api.md walks through it, docs/numerics.md is the contract of every result.
 *
 * Rules that hold for the whole file
 *  - Every struct but runmax_tensor starts with `uint32_t struct_size`, to be set to its sizeof.
 *    Everything else zero is the default. Structs only grow at their end, so that a binary built
 *    against an older header keeps working. There is no padding anywhere.
 *  - A field for which 0 is also a meaningful value counts only if its bit in `present` is set.
 *  - Functions return a runmax_status. On failure runmax_last_error() holds one line,
 *    "FIELD: what is wrong (value), what is allowed", and nothing has been written.
 *  - No function throws, aborts or prints. Plans and devices may be used from several threads at
 *    once; a workspace serves one execute at a time.
 *
 * Names of dimensions: batch, q_heads, kv_heads (q_heads is a multiple), q_len, kv_len, head_dim
 * (of q and k), head_dim_v (of v and out), total_q and total_kv (tokens of packed sequences).
 */
#ifndef RUNMAX_H
#define RUNMAX_H

#include <stddef.h>
#include <stdint.h>

#include "runmax/version.h"

#if defined(RUNMAX_STATIC)
#define RUNMAX_API
#elif defined(__GNUC__)
#define RUNMAX_API __attribute__((visibility("default")))
#else
#define RUNMAX_API
#endif

#ifdef __cplusplus
#define RUNMAX_NOEXCEPT noexcept
extern "C" {
#else
#define RUNMAX_NOEXCEPT
#endif

/* ------------------------------------------------------------------------------- constants
 * Values are fixed for ever. They travel in int32_t fields, never in a C enum type. */

typedef int32_t runmax_status;
enum {
  RUNMAX_OK = 0,
  RUNMAX_INVALID_ARGUMENT = 1, /* the request is ill-formed; the message names the field */
  RUNMAX_UNSUPPORTED = 2,      /* well-formed, but no kernel takes it; the message lists reasons */
  RUNMAX_OUT_OF_MEMORY = 3,
  RUNMAX_DEVICE_ERROR = 4, /* a device failed or is absent; the message says why */
  RUNMAX_INTERNAL_ERROR = 5
};

typedef int32_t runmax_dtype;
enum {
  RUNMAX_DTYPE_NONE = 0, /* the operand is absent */
  RUNMAX_F32 = 1,
  RUNMAX_F64 = 2,
  RUNMAX_BF16 = 3,
  RUNMAX_F16 = 4,
  RUNMAX_I32 = 5,
  RUNMAX_BOOL = 6, /* one byte; any non-zero value is true */
  /* reserved for quantised keys and values; refused in this release */
  RUNMAX_F8_E4M3 = 16,
  RUNMAX_F8_E5M2 = 17,
  RUNMAX_I8 = 18,
  RUNMAX_I4 = 19
};

enum { RUNMAX_FORWARD = 0, RUNMAX_BACKWARD = 1, RUNMAX_MERGE = 2 };         /* op */
enum { RUNMAX_STORAGE_DENSE = 0, RUNMAX_STORAGE_PAGED = 1 /* reserved */ }; /* storage */
enum { RUNMAX_ALIGN_BOTTOM_RIGHT = 0, RUNMAX_ALIGN_TOP_LEFT = 1 };          /* diagonal */
enum { RUNMAX_DEVICE_CPU = 0, RUNMAX_DEVICE_CUDA = 1 };                     /* kind */
enum { RUNMAX_COPY_TO_DEVICE = 0, RUNMAX_COPY_FROM_DEVICE = 1, RUNMAX_COPY_ON_DEVICE = 2 };

/* runmax_problem.present */
#define RUNMAX_PRESENT_SCALE (UINT64_C(1) << 0)
#define RUNMAX_PRESENT_WINDOW_LEFT (UINT64_C(1) << 1)
#define RUNMAX_PRESENT_WINDOW_RIGHT (UINT64_C(1) << 2)

/* runmax_problem.flags */
#define RUNMAX_CAUSAL (UINT64_C(1) << 0)
#define RUNMAX_DETERMINISTIC (UINT64_C(1) << 1)   /* same bits run to run (always so on the CPU) */
#define RUNMAX_BATCH_INVARIANT (UINT64_C(1) << 2) /* a row's bits depend on its own data only */
#define RUNMAX_KEEP_UNUSED (UINT64_C(1) << 3)     /* leave rows of no sequence untouched */
#define RUNMAX_CHECKED (UINT64_C(1) << 4)         /* verify device-resident index tensors first */
#define RUNMAX_ALLOW_TF32 (UINT64_C(1) << 5)      /* F32 products may round operands to TF32 */

/* Instruction sets, for isa_mask. The baseline (x86-64, or Armv8-A) is always there. */
#define RUNMAX_ISA_BASELINE (UINT64_C(1) << 0)
#define RUNMAX_ISA_AVX2 (UINT64_C(1) << 1)   /* with FMA and F16C */
#define RUNMAX_ISA_AVX512 (UINT64_C(1) << 2) /* F, BW, DQ, VL */
#define RUNMAX_ISA_AVX512_BF16 (UINT64_C(1) << 3)
#define RUNMAX_ISA_AMX_BF16 (UINT64_C(1) << 4)
#define RUNMAX_ISA_NEON (UINT64_C(1) << 5)

#define RUNMAX_MAX_RANK 6
#define RUNMAX_WORKSPACE_ALIGNMENT 64

/* --------------------------------------------------------------------------------- problem */

/* One operand: 128 bytes, fixed for ever. All zero means absent. Strides count elements; they may
 * be 0 (broadcast, inputs only) or negative, and the last dimension may be strided. */
typedef struct runmax_tensor {
  int32_t dtype;
  int32_t rank;
  int64_t shape[RUNMAX_MAX_RANK];
  int64_t stride[RUNMAX_MAX_RANK];
  int32_t min_alignment; /* bytes: the caller's promise about the pointer; 0 = the element size */
  int32_t storage;
  int64_t reserved[2]; /* zero */
} runmax_tensor;

/* Shapes, types and options: everything but pointers and data.
 *
 * Dense:  q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim],
 *         v [batch, kv_heads, kv_len, head_dim_v], out [batch, q_heads, q_len, head_dim_v],
 *         lse [batch, q_heads, q_len]. Any memory layout: strides express it.
 * Packed: (with cu_seqlens_q and cu_seqlens_kv) q [total_q, q_heads, head_dim],
 *         k [total_kv, kv_heads, head_dim], v [total_kv, kv_heads, head_dim_v],
 *         out [total_q, q_heads, head_dim_v], lse [q_heads, total_q].
 * Gradients have the shape of their input. Merge: partial_out [n, ...out], partial_lse [n, ...lse].
 */
typedef struct runmax_problem {
  uint32_t struct_size;
  int32_t op;
  uint64_t present;
  uint64_t flags;

  double scale;         /* default 1/sqrt(head_dim); 0, or magnitude in [2^-60, 2^60], any sign */
  double softcap;       /* c in c*tanh(s/c); 0 = none */
  double dropout;       /* probability of dropping a weight, in [0, 1]; 0 = none */
  int64_t window_left;  /* keys before the diagonal that stay visible, >= 0; absent = all */
  int64_t window_right; /* keys after the diagonal that stay visible, >= 0; absent = all */
  int64_t sink_tokens;  /* leading keys that window_left never hides */
  int64_t block_q;      /* block_index: rows of a block, >= 1 */
  int64_t block_kv;     /* block_index: keys of a block, >= 1 */
  int64_t max_q_len;    /* packed: optional upper bound of a sequence's q length; 0 = none given */
  int64_t max_kv_len;   /* packed: likewise for kv */
  int32_t diagonal_alignment;
  int32_t num_splits; /* parts along kv; 0 = the planner decides */
  const char* kernel; /* NULL, or the name of the kernel to use (runmax_kernel_get) */

  runmax_tensor q, k, v;
  runmax_tensor out;    /* type of q, or F32 */
  runmax_tensor lse;    /* F32 (F64 when q is); natural log */
  runmax_tensor lse_lo; /* what rounding lse lost; shape and type of lse */

  runmax_tensor bias; /* broadcastable to [batch, q_heads, q_len, kv_len]; type of q, or F32 */
  runmax_tensor mask; /* BOOL, likewise; false hides the pair */
  runmax_tensor alibi_slopes; /* [q_heads] or [batch, q_heads]; F32 (F64 when q is) */
  runmax_tensor sink;         /* [q_heads]; F32 (F64 when q is) */

  runmax_tensor seqused_q;       /* [batch] I32: rows in use of each sequence */
  runmax_tensor seqused_kv;      /* [batch] I32: keys in use of each sequence */
  runmax_tensor prefix_len;      /* [batch] I32: leading keys that every row sees */
  runmax_tensor diagonal_offset; /* [batch] I32: replaces what diagonal_alignment gives */
  runmax_tensor segment_ids_q;   /* [batch, q_len] I32 (packed: [total_q]) */
  runmax_tensor segment_ids_kv;  /* [batch, kv_len] I32 (packed: [total_kv]) */
  runmax_tensor cu_seqlens_q;    /* [batch + 1] I32: starts of packed sequences */
  runmax_tensor cu_seqlens_kv;   /* [batch + 1] I32 */
  runmax_tensor block_index;     /* I32 [batch, 1|kv_heads|q_heads, q_blocks, max_selected]
                                    (packed: [heads, sum of ceil(len/block_q), max_selected]) */

  runmax_tensor d_out; /* backward: upstream gradients; either may be absent */
  runmax_tensor d_lse;
  runmax_tensor d_q, d_k, d_v; /* backward: an absent gradient costs nothing */
  runmax_tensor d_bias;        /* shape of bias */
  runmax_tensor d_sink;
  runmax_tensor d_alibi_slopes;

  runmax_tensor partial_out; /* merge; partial_lse -inf marks a part without a visible key */
  runmax_tensor partial_lse;
  runmax_tensor d_partial_out; /* merge, differentiated */
  runmax_tensor d_partial_lse;

  runmax_tensor page_table; /* reserved: absent in this release, like the four that follow */
  runmax_tensor q_scale, k_scale, v_scale;
  runmax_tensor max_logit;
} runmax_problem;

/* The pointers of one execution, on the plan's device. A pointer is read or written if and only if
 * its tensor is present in the problem; one of a tensor without elements may be NULL. Index tensors
 * of a CPU plan are checked before anything is written. */
typedef struct runmax_args {
  uint32_t struct_size;
  uint32_t reserved; /* zero */

  const void *q, *k, *v;
  void *out, *lse, *lse_lo; /* backward reads them */

  const void *bias, *mask, *alibi_slopes, *sink;

  const int32_t *seqused_q, *seqused_kv, *prefix_len, *diagonal_offset;
  const int32_t *segment_ids_q, *segment_ids_kv;
  const int32_t *cu_seqlens_q, *cu_seqlens_kv;
  const int32_t* block_index;

  const void *d_out, *d_lse;
  void *d_q, *d_k, *d_v, *d_bias, *d_sink, *d_alibi_slopes;

  const void *partial_out, *partial_lse;
  void *d_partial_out, *d_partial_lse;

  const int32_t* page_table;
  const void *q_scale, *k_scale, *v_scale;
  void* max_logit;

  uint64_t seed; /* dropout: Philox-4x32-10 key and offset, by value ... */
  uint64_t offset;
  const uint64_t* seed_pointer; /* ... or, where not NULL, read from the device at execution */
  const uint64_t* offset_pointer;
} runmax_args;

/* Fills a contiguous, row-major description. Returns RUNMAX_INVALID_ARGUMENT for a rank outside
 * 1..RUNMAX_MAX_RANK, a negative dimension, or more than 2^62 elements. */
RUNMAX_API runmax_status runmax_tensor_init(runmax_tensor* tensor, runmax_dtype dtype, int32_t rank,
                                            const int64_t* shape) RUNMAX_NOEXCEPT;

/* Is the problem well-formed? Needs no device. RUNMAX_OK; RUNMAX_INVALID_ARGUMENT; or
 * RUNMAX_UNSUPPORTED for what is reserved for a later release. */
RUNMAX_API runmax_status runmax_validate(const runmax_problem* problem) RUNMAX_NOEXCEPT;

/* ---------------------------------------------------------------------------------- device */

typedef struct runmax_device runmax_device;
typedef struct runmax_plan runmax_plan;

/* Runs task(context, i, slot) for every i in [0, tasks) and returns when all are done. `slot` is in
 * [0, max_threads) and no two tasks that run at once share one. */
typedef void (*runmax_task)(void* context, int64_t task, int32_t slot);
typedef void (*runmax_parallel_for)(void* self, int64_t tasks, runmax_task task, void* context);

typedef struct runmax_device_options {
  uint32_t struct_size;
  int32_t kind;        /* RUNMAX_DEVICE_CPU or RUNMAX_DEVICE_CUDA */
  int32_t index;       /* which GPU */
  int32_t max_threads; /* CPU: thread slots; 0 = RUNMAX_THREADS or what the process may use */
  uint64_t isa_mask;   /* CPU: instruction sets that may be used; 0 = all that the machine has */
  runmax_parallel_for parallel_for; /* CPU: NULL = the device's own pool */
  void* parallel_for_self;
} runmax_device_options;

typedef struct runmax_device_info {
  uint32_t struct_size;
  int32_t kind;
  int32_t index;
  int32_t max_threads;
  uint64_t isa;       /* instruction sets that plans of this device may use */
  uint64_t isa_found; /* instruction sets of the machine */
  uint64_t l1_bytes;  /* CPU: first-level data cache of a core; GPU: shared memory of an SM */
  uint64_t l2_bytes;
  uint64_t l3_bytes;
  uint64_t memory_bytes;
  char name[128];
} runmax_device_info;

/* How many devices of a kind there are. For RUNMAX_DEVICE_CUDA without one the status is still
 * RUNMAX_OK, *count is 0, and runmax_last_error() says why. */
RUNMAX_API runmax_status runmax_device_count(int32_t kind, int32_t* count) RUNMAX_NOEXCEPT;

/* options NULL = the CPU with defaults. Destroy a device after its plans. */
RUNMAX_API runmax_status runmax_device_create(const runmax_device_options* options,
                                              runmax_device** device) RUNMAX_NOEXCEPT;
RUNMAX_API void runmax_device_destroy(runmax_device* device) RUNMAX_NOEXCEPT;
RUNMAX_API runmax_status runmax_device_get_info(const runmax_device* device,
                                                runmax_device_info* info) RUNMAX_NOEXCEPT;

/* Memory of the device, aligned to RUNMAX_WORKSPACE_ALIGNMENT at least; bytes may be 0. `stream` is
 * a cudaStream_t, NULL on the CPU. runmax_device_copy is ordered on the stream and may be
 * asynchronous; runmax_device_sync waits. */
RUNMAX_API runmax_status runmax_device_alloc(runmax_device* device, size_t bytes,
                                             void** pointer) RUNMAX_NOEXCEPT;
RUNMAX_API runmax_status runmax_device_free(runmax_device* device, void* pointer) RUNMAX_NOEXCEPT;
RUNMAX_API runmax_status runmax_device_copy(runmax_device* device, void* to, const void* from,
                                            size_t bytes, int32_t direction,
                                            void* stream) RUNMAX_NOEXCEPT;
RUNMAX_API runmax_status runmax_device_sync(runmax_device* device, void* stream) RUNMAX_NOEXCEPT;

/* What this device reaches now: a register-only multiply-add loop on all threads, and a stream of
 * reads from memory. Takes about half a second. */
typedef struct runmax_roofs {
  uint32_t struct_size;
  int32_t threads;
  double flops_per_second; /* F32 multiply-adds, counted as two operations */
  double bytes_per_second;
} runmax_roofs;
RUNMAX_API runmax_status runmax_measure_roofs(runmax_device* device,
                                              runmax_roofs* roofs) RUNMAX_NOEXCEPT;

/* ------------------------------------------------------------------------------------ plan */

/* Does some kernel of the device take the problem? RUNMAX_OK; RUNMAX_INVALID_ARGUMENT; or
 * RUNMAX_UNSUPPORTED, and the message has one line of reason per kernel after the first line. */
RUNMAX_API runmax_status runmax_supports(const runmax_problem* problem,
                                         runmax_device* device) RUNMAX_NOEXCEPT;

/* Chooses kernel and tiles. The problem is copied; nothing of it need outlive the call. */
RUNMAX_API runmax_status runmax_plan_create(const runmax_problem* problem, runmax_device* device,
                                            runmax_plan** plan) RUNMAX_NOEXCEPT;
RUNMAX_API void runmax_plan_destroy(runmax_plan* plan) RUNMAX_NOEXCEPT;

/* Bytes of workspace that execute needs: exact, never O(q_len * kv_len). */
RUNMAX_API size_t runmax_plan_workspace_size(const runmax_plan* plan) RUNMAX_NOEXCEPT;

/* Multi-line text: the chosen kernel and configuration, the workspace ledger, and for every other
 * kernel its cost or the reason why it was not chosen. Owned by the plan. */
RUNMAX_API const char* runmax_plan_explain(const runmax_plan* plan) RUNMAX_NOEXCEPT;

/* Counts behind `runmax explain`. Operations are multiplications and additions of the two
 * (backward: five) matrix products. "plain" is the three-step computation that writes scores and
 * probabilities to memory in the storage type of q. */
typedef struct runmax_plan_info {
  uint32_t struct_size;
  int32_t from_data; /* 0: counted from the shapes alone, data-dependent masks taken as absent */
  int32_t q_tile;
  int32_t kv_tile;
  int32_t num_splits;
  int32_t threads;
  uint64_t visible_pairs;       /* query/key pairs that are scored, over all q_heads */
  uint64_t required_operations; /* 2 * visible_pairs * (head_dim + head_dim_v) forward */
  uint64_t executed_tiled;      /* operations of the whole tiles that the kernel visits */
  uint64_t executed_plain;      /* operations over every pair, visible or not */
  uint64_t slow_bytes_tiled;    /* bytes that cross to the slow level of memory */
  uint64_t slow_bytes_plain;
  uint64_t extra_memory_tiled; /* bytes beyond inputs and outputs */
  uint64_t extra_memory_plain;
  uint64_t saved_tiled; /* bytes kept from forward for backward */
  uint64_t saved_plain;
  uint64_t fast_tile_bytes;  /* what one tile keeps in the fast level ... */
  uint64_t fast_level_bytes; /* ... and the size of that level */
  char fast_level[16];       /* "L1", "L2", "shared" */
  char kernel[64];
} runmax_plan_info;
RUNMAX_API runmax_status runmax_plan_get_info(const runmax_plan* plan,
                                              runmax_plan_info* info) RUNMAX_NOEXCEPT;
/* Likewise, but counted from the data of host-resident args (lengths, masks, bias, blocks). */
RUNMAX_API runmax_status runmax_plan_count(const runmax_plan* plan, const runmax_args* args,
                                           runmax_plan_info* info) RUNMAX_NOEXCEPT;

/* Runs the plan. Allocates nothing. `workspace` is aligned to RUNMAX_WORKSPACE_ALIGNMENT and at
 * least runmax_plan_workspace_size bytes. `stream` is a cudaStream_t, NULL on the CPU. */
RUNMAX_API runmax_status runmax_execute(const runmax_plan* plan, const runmax_args* args,
                                        void* workspace, size_t workspace_size,
                                        void* stream) RUNMAX_NOEXCEPT;

/* Checks pointers, overlap and every index tensor, and names the first bad entry; runs nothing.
 * Waits for the stream where index tensors lie on a GPU. */
RUNMAX_API runmax_status runmax_check_args(const runmax_plan* plan, const runmax_args* args,
                                           void* stream) RUNMAX_NOEXCEPT;

/* Plans and executes an op = RUNMAX_MERGE problem: combines the results of attention over disjoint
 * sets of keys, out = sum_i exp(lse_i - lse) out_i. Out of place; needs no workspace. */
RUNMAX_API runmax_status runmax_merge(runmax_device* device, const runmax_problem* problem,
                                      const runmax_args* args, void* stream) RUNMAX_NOEXCEPT;

/* ------------------------------------------------------------------------- library and errors */

/* The calling thread's last error, "" after a success. Valid until its next call. */
RUNMAX_API const char* runmax_last_error(void) RUNMAX_NOEXCEPT;
/* The field that it names ("q.shape[2]"), "" if none. */
RUNMAX_API const char* runmax_last_error_field(void) RUNMAX_NOEXCEPT;
RUNMAX_API const char* runmax_status_name(runmax_status status) RUNMAX_NOEXCEPT;

/* major * 1000000 + minor * 1000 + patch. */
RUNMAX_API int32_t runmax_version(void) RUNMAX_NOEXCEPT;
/* 1 if this library has the named feature ("forward", "packed", "dropout", ...), else 0. */
RUNMAX_API int32_t runmax_has_feature(const char* name) RUNMAX_NOEXCEPT;

typedef struct runmax_kernel_info {
  uint32_t struct_size;
  int32_t device_kind;
  int32_t op;
  int32_t reserved;
  uint64_t required_isa;
  const char* name; /* static strings */
  const char* summary;
} runmax_kernel_info;
/* Every kernel of the library, in table order. */
RUNMAX_API int32_t runmax_kernel_count(void) RUNMAX_NOEXCEPT;
RUNMAX_API runmax_status runmax_kernel_get(int32_t index, runmax_kernel_info* info) RUNMAX_NOEXCEPT;

typedef struct runmax_environment_info {
  uint32_t struct_size;
  int32_t reserved;
  const char* name;
  const char* summary;
  const char* value; /* as read when the library was loaded; NULL = not set */
} runmax_environment_info;
/* Every environment variable that the library reads. */
RUNMAX_API int32_t runmax_environment_count(void) RUNMAX_NOEXCEPT;
RUNMAX_API runmax_status runmax_environment_get(int32_t index,
                                                runmax_environment_info* info) RUNMAX_NOEXCEPT;

/* "avx2" -> RUNMAX_ISA_AVX2, and back. 0 and NULL for what does not exist. */
RUNMAX_API uint64_t runmax_isa_from_name(const char* name) RUNMAX_NOEXCEPT;
RUNMAX_API const char* runmax_isa_name(uint64_t isa) RUNMAX_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* RUNMAX_H */
