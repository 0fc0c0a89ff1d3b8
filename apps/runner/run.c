#include "runner.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void *symbol(struct run *run, const char *name, bool needed) {
  void *found = dlsym(run->library, name);
  if (!found && needed) fail(run, STAGE_LIBRARY, "%s has no function %s", run->job.library, name);
  return found;
}

static void series_add(struct run *run, struct series *series, int64_t ns) {
  if (series->count == series->room) {
    size_t room = series->room ? series->room * 2 : 256;
    int64_t *grown = realloc(series->ns, room * sizeof *grown);
    if (!grown) fail(run, STAGE_INVOKE, "out of memory");
    series->ns = grown;
    series->room = room;
  }
  series->ns[series->count++] = ns;
}

static const struct backend *choose(struct run *run) {
  if (strcmp(run->job.runtime, "onnxruntime") == 0) return &onnxruntime;
  if (strcmp(run->job.runtime, "litert") != 0) fail(run, STAGE_LIBRARY, "this runner does not know the runtime '%s'; it knows litert and onnxruntime", run->job.runtime);
  const char *api = job_option(&run->job, "api");
  bool interpreter = symbol(run, "TfLiteInterpreterCreate", false) != NULL;
  if (api && strcmp(api, "interpreter") != 0 && strcmp(api, "compiled") != 0) fail(run, STAGE_PREPARE, "option api: '%s' is neither interpreter nor compiled", api);
  if (api) interpreter = strcmp(api, "interpreter") == 0;
  return interpreter ? &litert_interpreter : &litert_compiled;
}

static void open_library(struct run *run) {
  enter(run, STAGE_LIBRARY);
  int64_t start = now_ns();
  if (!*run->job.library) fail(run, STAGE_LIBRARY, "the job names no library for the runtime %s", run->job.runtime);
  char *path = path_join(run, run->job_dir, run->job.library);
  run->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!run->library) fail(run, STAGE_LIBRARY, "%s", dlerror());
  run->backend = choose(run);
  run->backend->open(run);
  memcpy(run->shared->runtime_version, run->result.runtime_version, sizeof run->shared->runtime_version);
  run->result.library_ns = now_ns() - start;
  free(path);
}

static int64_t load(struct run *run) {
  enter(run, STAGE_MODEL);
  int64_t start = now_ns();
  run->backend->load(run);
  return now_ns() - start;
}

static void set_input(struct run *run, int input, const void *data) {
  enter(run, STAGE_INPUT);
  run->backend->set_input(run, input, data);
}

static void set_inputs(struct run *run, const struct json *sample, void *const *states) {
  const char *files[MAX_TENSORS];
  const struct job *job = &run->job;
  job_sample(run, sample, files);
  for (int i = 0; i < job->input_count; i++) {
    if (states && states[i]) {
      set_input(run, i, states[i]);
      continue;
    }
    enter(run, STAGE_INPUT);
    char *path = path_join(run, run->job_dir, files[i]);
    void *data = read_file(run, path, job->inputs[i].bytes, job->inputs[i].name);
    set_input(run, i, data);
    free(data);
    free(path);
  }
}

static int64_t invoke(struct run *run) {
  enter(run, STAGE_INVOKE);
  int64_t start = now_ns();
  run->backend->invoke(run);
  return now_ns() - start;
}

static void write_output(struct run *run, size_t sample, int output) {
  char name[64];
  struct tensor *actual = &run->result.outputs[sample][output];
  const void *data = run->backend->output(run, output, actual);
  snprintf(name, sizeof name, "outputs/%zu-%d.raw", sample, output);
  char *path = path_join(run, run->result_dir, name);
  write_file(run, path, data, actual->bytes);
  free(path);
}

/* Keeps what the next sample takes from this one's outputs. */
static void keep_states(struct run *run, void **states) {
  const struct job *job = &run->job;
  struct tensor actual;
  for (int i = 0; i < job->input_count; i++) {
    if (job->state_output[i] < 0) continue;
    const void *data = run->backend->output(run, job->state_output[i], &actual);
    if (actual.bytes != job->inputs[i].bytes || actual.dtype != job->inputs[i].dtype)
      fail(run, STAGE_INVOKE, "the state '%s' has %zu bytes of %s, but the input '%s' takes %zu of %s", job->outputs[job->state_output[i]].name, actual.bytes,
           dtype_name(actual.dtype), job->inputs[i].name, job->inputs[i].bytes, dtype_name(job->inputs[i].dtype));
    if (!states[i]) states[i] = allocate(run, actual.bytes, 1);
    memcpy(states[i], data, actual.bytes);
  }
}

static void run_samples(struct run *run) {
  void *states[MAX_TENSORS] = {NULL};
  const struct job *job = &run->job;
  char *folder = path_join(run, run->result_dir, "outputs");
  if (mkdir(folder, 0755) != 0 && errno != EEXIST) fail(run, STAGE_OUTPUT, "%s: %s", folder, strerror(errno));
  run->result.outputs = allocate(run, job->sample_count, sizeof *run->result.outputs);
  const struct json *sample = job->samples->child;
  for (size_t s = 0; s < job->sample_count; s++, sample = sample->next) {
    set_inputs(run, sample, states);
    series_add(run, &run->result.samples, invoke(run));
    enter(run, STAGE_OUTPUT);
    for (int i = 0; i < job->output_count; i++) write_output(run, s, i);
    run->result.output_samples = s + 1;
    enter(run, STAGE_INVOKE);
    keep_states(run, states);
  }
  for (int i = 0; i < job->input_count; i++) free(states[i]);
  free(folder);
}

/* The last three runs differ by at most 5 %. */
static bool steady(const struct series *warmup) {
  if (warmup->count < 3) return false;
  const int64_t *last = warmup->ns + warmup->count - 3;
  int64_t least = last[0], most = last[0];
  for (int i = 1; i < 3; i++) {
    if (last[i] < least) least = last[i];
    if (last[i] > most) most = last[i];
  }
  return (double)most <= 1.05 * (double)least;
}

static void add_log(struct run *run, int done) {
  struct result *result = &run->result;
  if (result->log_count == MAX_LOG) return;
  struct reading *reading = &result->log[result->log_count++];
  reading->run = done;
  probe_read(reading);
}

static void take_latency(struct run *run) {
  const struct job *job = &run->job;
  struct result *result = &run->result;
  if (job->min_runs == 0) return;
  set_inputs(run, job->samples->child, NULL);
  result->log = allocate(run, MAX_LOG, sizeof *result->log);
  for (int i = 0; i < job->warmup_runs && !steady(&result->warmup); i++) series_add(run, &result->warmup, invoke(run));
  int64_t start = now_ns(), logged = start;
  for (int done = 1;; done++) {
    series_add(run, &result->latency, invoke(run));
    int64_t now = now_ns();
    if (done >= job->min_runs || (double)(now - start) >= job->max_seconds * 1e9) return;
    if (now - logged < 1000000000) continue;
    add_log(run, done);
    logged = now_ns();
  }
}

void run_job(struct run *run) {
  struct result *result = &run->result;
  job_read(run);
  snprintf(run->shared->runtime, sizeof run->shared->runtime, "%s", run->job.runtime);
  probe_cool(&run->job);
  probe_pin(&run->job);
  result->cpu_count = probe_cpus(result->cpus);
  probe_read(&result->before);
  open_library(run);
  result->load_cold_ns = load(run);
  run->backend->release(run);
  result->load_warm_ns = load(run);
  job_check_options(run);
  run_samples(run);
  take_latency(run);
  probe_read(&result->after);
  result->peak_memory_bytes = probe_peak_memory();
  enter(run, STAGE_INVOKE);
  run->backend->place(run);
}
