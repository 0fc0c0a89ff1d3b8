/* What the parts of the runner share. The contract is apps/CONTRACT.md. */
#ifndef EDGEKIT_RUNNER_H
#define EDGEKIT_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "json.h"

#define RUNNER_VERSION "0.1.0"

enum { MAX_RANK = 8, MAX_TENSORS = 256, MAX_SAMPLES = 100000, MAX_ZONES = 64, MAX_CPUS = 256, MAX_LOG = 600, MAX_KINDS = 64 };

enum stage { STAGE_JOB, STAGE_LIBRARY, STAGE_MODEL, STAGE_PREPARE, STAGE_INPUT, STAGE_INVOKE, STAGE_OUTPUT, STAGES };
enum { EXIT_USAGE = 2, EXIT_STAGE = 10 /* plus the stage */ };

enum dtype {
  DTYPE_NONE, FLOAT32, FLOAT16, FLOAT64, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, BOOL, DTYPES
};

struct tensor {
  const char *name;         /* in the job */
  const char *runtime_name; /* what the runtime is expected to call it */
  const char *file;
  enum dtype dtype;
  int rank;
  int64_t dims[MAX_RANK];
  size_t bytes;
};

struct option {
  const char *key, *value;
  bool read;
};

struct job {
  const char *runtime, *library, *artifact, *accelerator, *affinity;
  const struct json *samples; /* validated: lists of tensor files */
  size_t sample_count;
  struct tensor inputs[MAX_TENSORS], outputs[MAX_TENSORS]; /* of the first sample; files apart */
  int input_count, output_count;
  int state_output[MAX_TENSORS]; /* by input: the output that feeds it, or -1 */
  struct option options[MAX_TENSORS];
  int option_count;
  int threads, warmup_runs, min_runs;
  double max_seconds, cool_wait_seconds;
  bool cools;
  int64_t cool_below;
};

struct named { char name[64]; int64_t value; };
struct reading { int run, zone_count, clock_count; struct named zones[MAX_ZONES], clocks[MAX_CPUS]; };
struct series { int64_t *ns; size_t count, room; };

struct placement {
  bool known;
  char delegate[64];
  int nodes, total, partitions;
  const char *taken[MAX_KINDS], *left[MAX_KINDS]; /* kinds of operators, each once */
  int taken_count, left_count;
};

struct result {
  char runtime_version[128];
  int64_t library_ns, load_cold_ns, load_warm_ns, peak_memory_bytes; /* -1: not measured */
  struct series samples, warmup, latency;
  struct reading before, after, *log;
  int log_count;
  int cpus[MAX_CPUS], cpu_count;
  struct placement placement;
  struct tensor (*outputs)[MAX_TENSORS]; /* by sample: dtype, rank, dims; complete samples only */
  size_t output_samples;
};

struct run;

/* A runtime. Tensor indexes are those of the job. Every function ends the process through fail() when it cannot do its work. */
struct backend {
  void (*open)(struct run *);                                              /* functions of the library, environment */
  void (*load)(struct run *);                                              /* from the artifact to ready-to-invoke, tensors matched and checked */
  void (*release)(struct run *);
  void (*set_input)(struct run *, int input, const void *data);            /* exactly inputs[input].bytes */
  void (*invoke)(struct run *);
  const void *(*output)(struct run *, int output, struct tensor *actual);  /* fills dtype, rank, dims, bytes */
  void (*place)(struct run *);                                             /* may fill result.placement */
};

/* What the parent knows when this process dies. */
struct shared { volatile int stage; volatile bool ended; char runtime[64], runtime_version[128]; };

struct run {
  const char *job_dir, *result_dir;
  struct shared *shared;
  struct job job;
  struct result result;
  const struct backend *backend;
  void *library;
  void *state; /* the backend's own */
};

/* main.c: writes result.json with status failed and ends the process with the stage's exit code */
void fail(struct run *run, enum stage stage, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
void enter(struct run *run, enum stage stage);
void *allocate(struct run *run, size_t count, size_t size);

/* job.c */
void job_read(struct run *run);
void job_sample(struct run *run, const struct json *sample, const char *files[MAX_TENSORS]);
const char *job_option(struct job *job, const char *key);
/* Fails with stage prepare when an option was read by nothing. */
void job_check_options(struct run *run);

/* tensor.c */
const char *dtype_name(enum dtype dtype);
enum dtype dtype_named(const char *name);
size_t dtype_bytes(enum dtype dtype);
bool tensor_size(struct tensor *tensor); /* fills bytes; false on overflow */
const char *tensor_text(const struct tensor *tensor, char *out, size_t size);
bool same_shape(const struct tensor *a, const struct tensor *b);
char *path_join(struct run *run, const char *folder, const char *name);
void *read_file(struct run *run, const char *path, size_t bytes, const char *what);
void write_file(struct run *run, const char *path, const void *data, size_t bytes);
/* A wanted tensor against the one it was matched to. An unknown size of the runtime's is -1 in `actual` and agrees with any. */
void check_input(struct run *run, const struct tensor *wanted, const struct tensor *actual);
void check_output(struct run *run, const struct tensor *wanted, const struct tensor *actual);
struct names { const char **names; int count; };
/* index[i] in the runtime for each wanted tensor, by the first list that has every name once; by position as the contract says. */
void match(struct run *run, const char *side, const struct tensor *wanted, int count, const struct names *lists, int list_count, int known, int *index);

/* probe.c */
int64_t now_ns(void);
void probe_read(struct reading *reading);
void probe_cool(const struct job *job);
void probe_pin(const struct job *job);
int probe_cpus(int cpus[MAX_CPUS]);
int64_t probe_peak_memory(void);
int64_t probe_peak_memory_of_children(void); /* that have ended */

/* result.c: complete or not at all; false when it could not be written */
bool result_write(const char *result_dir, const struct job *job, const struct result *result, const char *stage, const char *error);
const char *stage_name(int stage);

/* litert_types.c */
enum dtype litert_dtype(int type);
const char *litert_operator(int code); /* valid until the next call */

/* placement.c: operators by kind, and what a delegate took of all of them */
struct census { int total, count; struct { char *name; int nodes; } kinds[MAX_KINDS]; };
void census_add(struct census *census, const char *kind);
void placement_set(struct placement *p, const char *delegate, const struct census *all, const struct census *left, int partitions);

/* run.c */
void run_job(struct run *run);

extern const struct backend litert_interpreter, litert_compiled, onnxruntime;

/* The address of a function of the runtime's library; fails with stage library when `needed` and absent. */
void *symbol(struct run *run, const char *name, bool needed);

#endif
