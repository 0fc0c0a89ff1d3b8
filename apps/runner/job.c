#include "runner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_JOB_BYTES = 16 << 20, MAX_THREADS = 256, MAX_RUNS = 1000000, MAX_SECONDS = 86400 };

static const struct json *field(struct run *run, const struct json *object, const char *key, enum json_kind kind, bool needed) {
  const struct json *value = json_get(object, key);
  if (!value && needed) fail(run, STAGE_JOB, "job.json: there is no '%s'", key);
  if (value && value->kind != kind) fail(run, STAGE_JOB, "job.json: '%s' has the wrong type", key);
  return value;
}

static const char *text_field(struct run *run, const struct json *object, const char *key, const char *otherwise) {
  const struct json *value = field(run, object, key, JSON_STRING, otherwise == NULL);
  return value ? value->text : otherwise;
}

static int64_t integer_field(struct run *run, const struct json *object, const char *key, int64_t otherwise, int64_t least, int64_t most) {
  const struct json *value = field(run, object, key, JSON_NUMBER, false);
  if (!value) return otherwise;
  if (!value->is_integer || value->number < (double)least || value->number > (double)most)
    fail(run, STAGE_JOB, "job.json: '%s' is %g, not an integer in %lld..%lld", key, value->number, (long long)least, (long long)most);
  return (int64_t)value->number;
}

static double seconds_field(struct run *run, const struct json *object, const char *key, double otherwise) {
  const struct json *value = field(run, object, key, JSON_NUMBER, false);
  if (!value) return otherwise;
  if (!(value->number >= 0 && value->number <= MAX_SECONDS)) fail(run, STAGE_JOB, "job.json: '%s' is %g, not in 0..%d", key, value->number, MAX_SECONDS);
  return value->number;
}

/* A path that stays in its folder. */
static const char *path_field(struct run *run, const struct json *object, const char *key, const char *otherwise) {
  const char *path = text_field(run, object, key, otherwise);
  if (otherwise && !*path) return path;
  bool leaves = !*path || *path == '/' || strchr(path, '\\');
  for (const char *part = path; part && !leaves; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
    leaves = strncmp(part, "..", 2) == 0 && (part[2] == 0 || part[2] == '/');
  if (leaves) fail(run, STAGE_JOB, "job.json: '%s' is '%s', which is not a path inside the folder", key, path);
  return path;
}

static const char *runtime_name(const struct json *names, const char *name) {
  const struct json *other = json_get(names, name);
  return other ? other->text : name;
}

static void tensor_read(struct run *run, const struct json *from, const struct json *names, bool has_file, struct tensor *t) {
  if (from->kind != JSON_OBJECT) fail(run, STAGE_JOB, "job.json: a tensor is not an object");
  memset(t, 0, sizeof *t);
  t->name = text_field(run, from, "name", NULL);
  t->runtime_name = runtime_name(names, t->name);
  t->file = has_file ? path_field(run, from, "file", NULL) : NULL;
  const char *dtype = text_field(run, from, "dtype", NULL);
  t->dtype = dtype_named(dtype);
  if (t->dtype == DTYPE_NONE) fail(run, STAGE_JOB, "job.json: tensor '%s' has the unknown dtype '%s'", t->name, dtype);
  const struct json *shape = field(run, from, "shape", JSON_ARRAY, true);
  if (shape->count > MAX_RANK) fail(run, STAGE_JOB, "job.json: tensor '%s' has %zu dimensions, more than %d", t->name, shape->count, MAX_RANK);
  for (const struct json *dim = shape->child; dim; dim = dim->next) {
    if (dim->kind != JSON_NUMBER || !dim->is_integer || dim->number < 0) fail(run, STAGE_JOB, "job.json: tensor '%s' has a dimension that is not a count", t->name);
    t->dims[t->rank++] = (int64_t)dim->number;
  }
  if (!tensor_size(t)) fail(run, STAGE_JOB, "job.json: tensor '%s' is too large", t->name);
}

static int tensors_read(struct run *run, const struct json *list, const struct json *names, bool has_file, struct tensor *out) {
  int count = 0;
  if (list->kind != JSON_ARRAY || list->count == 0 || list->count > MAX_TENSORS) fail(run, STAGE_JOB, "job.json: a list of tensors that is not 1..%d tensors", MAX_TENSORS);
  for (const struct json *entry = list->child; entry; entry = entry->next, count++) {
    tensor_read(run, entry, names, has_file, &out[count]);
    for (int i = 0; i < count; i++)
      if (strcmp(out[i].name, out[count].name) == 0) fail(run, STAGE_JOB, "job.json: the tensor '%s' is named twice", out[i].name);
  }
  return count;
}

static int find(const struct tensor *tensors, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (strcmp(tensors[i].name, name) == 0) return i;
  return -1;
}

/* Files of a sample in the order of job.inputs. Same names, dtypes and shapes as in the first sample. */
void job_sample(struct run *run, const struct json *list, const char *files[MAX_TENSORS]) {
  static struct tensor tensors[MAX_TENSORS];
  struct job *job = &run->job;
  int count = tensors_read(run, list, NULL, true, tensors);
  if (count != job->input_count) fail(run, STAGE_JOB, "job.json: a sample has %d inputs, but the first has %d", count, job->input_count);
  for (int i = 0; i < count; i++) {
    int at = find(job->inputs, job->input_count, tensors[i].name);
    if (at < 0) fail(run, STAGE_JOB, "job.json: the first sample has no input '%s'", tensors[i].name);
    if (tensors[i].dtype != job->inputs[at].dtype || !same_shape(&tensors[i], &job->inputs[at])) fail(run, STAGE_JOB, "job.json: the input '%s' changes dtype or shape", tensors[i].name);
    files[at] = tensors[i].file;
  }
}

static void states_read(struct run *run, const struct json *from) {
  struct job *job = &run->job;
  for (int i = 0; i < job->input_count; i++) job->state_output[i] = -1;
  for (const struct json *entry = from ? from->child : NULL; entry; entry = entry->next) {
    if (entry->kind != JSON_STRING) fail(run, STAGE_JOB, "job.json: 'state_from' has an entry of the wrong type");
    int output = find(job->outputs, job->output_count, entry->key), input = find(job->inputs, job->input_count, entry->text);
    if (output < 0 || input < 0) fail(run, STAGE_JOB, "job.json: 'state_from' feeds '%s' to '%s', one of which the job does not name", entry->key, entry->text);
    if (job->state_output[input] >= 0) fail(run, STAGE_JOB, "job.json: 'state_from' feeds the input '%s' twice", entry->text);
    job->state_output[input] = output;
  }
}

static void options_read(struct run *run, const struct json *from) {
  struct job *job = &run->job;
  if (from && from->count > MAX_TENSORS) fail(run, STAGE_JOB, "job.json: more than %d options", MAX_TENSORS);
  for (const struct json *entry = from ? from->child : NULL; entry; entry = entry->next) {
    if (entry->kind != JSON_STRING) fail(run, STAGE_JOB, "job.json: the option '%s' has the wrong type", entry->key);
    job->options[job->option_count++] = (struct option){entry->key, entry->text, false};
  }
}

static void settings_read(struct run *run, const struct json *root) {
  struct job *job = &run->job;
  const struct json *cool = json_get(root, "cool_below_millicelsius");
  job->runtime = text_field(run, root, "runtime", NULL);
  job->library = path_field(run, root, "library", "");
  job->artifact = path_field(run, root, "artifact", NULL);
  job->accelerator = text_field(run, root, "accelerator", "cpu");
  job->affinity = text_field(run, root, "affinity", "any");
  if (strcmp(job->affinity, "any") != 0 && strcmp(job->affinity, "big") != 0 && strcmp(job->affinity, "little") != 0)
    fail(run, STAGE_JOB, "job.json: 'affinity' is '%s', not any, big or little", job->affinity);
  job->threads = (int)integer_field(run, root, "threads", 1, 1, MAX_THREADS);
  job->warmup_runs = (int)integer_field(run, root, "warmup_runs", 10, 0, MAX_RUNS);
  job->min_runs = (int)integer_field(run, root, "min_runs", 100, 0, MAX_RUNS);
  job->max_seconds = seconds_field(run, root, "max_seconds", 5.0);
  job->cool_wait_seconds = seconds_field(run, root, "cool_wait_seconds", 0.0);
  job->cools = cool && cool->kind != JSON_NULL;
  if (job->cools) job->cool_below = integer_field(run, root, "cool_below_millicelsius", 0, -273150, 1000000);
}

static struct json *document(struct run *run) {
  char *path = path_join(run, run->job_dir, "job.json"), error[128];
  FILE *file = fopen(path, "rb");
  if (!file) fail(run, STAGE_JOB, "%s: %s", path, strerror(errno));
  char *text = allocate(run, MAX_JOB_BYTES + 1, 1);
  size_t length = fread(text, 1, MAX_JOB_BYTES + 1, file);
  fclose(file);
  if (length > MAX_JOB_BYTES) fail(run, STAGE_JOB, "job.json is larger than %d bytes", MAX_JOB_BYTES);
  struct json *root = json_parse(text, length, error, sizeof error);
  if (!root) fail(run, STAGE_JOB, "job.json: %s", error);
  if (root->kind != JSON_OBJECT) fail(run, STAGE_JOB, "job.json is not an object");
  free(text);
  free(path);
  return root;
}

void job_read(struct run *run) {
  struct job *job = &run->job;
  const char *files[MAX_TENSORS];
  const struct json *root = document(run);
  int64_t schema = integer_field(run, root, "schema", 1, 0, 1 << 30);
  if (schema != 1) fail(run, STAGE_JOB, "job.json has schema %lld, but this runner speaks 1", (long long)schema);
  settings_read(run, root);
  const struct json *names = field(run, root, "runtime_names", JSON_OBJECT, false);
  for (const struct json *entry = names ? names->child : NULL; entry; entry = entry->next)
    if (entry->kind != JSON_STRING) fail(run, STAGE_JOB, "job.json: 'runtime_names' has an entry of the wrong type");
  job->samples = field(run, root, "samples", JSON_ARRAY, true);
  job->sample_count = job->samples->count;
  if (job->sample_count == 0 || job->sample_count > MAX_SAMPLES) fail(run, STAGE_JOB, "job.json: %zu samples, not in 1..%d", job->sample_count, MAX_SAMPLES);
  job->input_count = tensors_read(run, job->samples->child, names, true, job->inputs);
  job->output_count = tensors_read(run, field(run, root, "outputs", JSON_ARRAY, true), names, false, job->outputs);
  for (const struct json *sample = job->samples->child; sample; sample = sample->next) job_sample(run, sample, files);
  states_read(run, field(run, root, "state_from", JSON_OBJECT, false));
  options_read(run, field(run, root, "options", JSON_OBJECT, false));
  char *artifact = path_join(run, run->job_dir, job->artifact);
  if (access(artifact, R_OK) != 0) fail(run, STAGE_JOB, "the artifact %s: %s", job->artifact, strerror(errno));
  free(artifact);
}

const char *job_option(struct job *job, const char *key) {
  for (int i = 0; i < job->option_count; i++) {
    if (strcmp(job->options[i].key, key) != 0) continue;
    job->options[i].read = true;
    return job->options[i].value;
  }
  return NULL;
}

void job_check_options(struct run *run) {
  const struct job *job = &run->job;
  for (int i = 0; i < job->option_count; i++)
    if (!job->options[i].read) fail(run, STAGE_PREPARE, "%s with accelerator %s has no option '%s'", job->runtime, job->accelerator, job->options[i].key);
}
